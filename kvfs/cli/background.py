"""Starting a mount in the background: the command returns when the mount answers, or with its error.

The daemon is this same program with --foreground and a pipe, on which it writes one line of JSON: that it is ready, or
which error stopped it. A pipe that closes without a line means that the process died.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from kvfs.errors import MountFailed, RemoteError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

LOG_MAX = 1 << 20
"""Bytes; a larger log of earlier mounts is put aside before the next one."""


def start(arguments: Sequence[str], log: Path) -> list[str]:
    """Run `kvfs ARGUMENTS --ready-fd N` in a session of its own and wait until it is ready.

    :returns: what it warned of meanwhile
    :raises RemoteError: it said why it cannot
    :raises MountFailed: it ended without a word
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as answers:
        try:
            process = _spawn(arguments, writer, log)
        finally:
            os.close(writer)
        try:
            line = answers.readline()
        except KeyboardInterrupt:
            process.terminate()
            raise
    if not line:
        raise MountFailed(_ended(process.wait(), log))
    answer = json.loads(line)
    if "class" in answer:
        process.wait()
        raise RemoteError(answer["class"], answer["message"])
    process.returncode = 0  # it goes on without us: nothing to wait for, nothing to complain about
    return list(answer["warnings"])


def _spawn(arguments: Sequence[str], writer: int, log: Path) -> subprocess.Popen[bytes]:
    if log.exists() and log.stat().st_size > LOG_MAX:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "kvfs", *arguments, "--ready-fd", str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writer,),
            start_new_session=True,
        )


def _ended(code: int, log: Path) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    lines = log.read_text(errors="replace").splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"the mount's process {how} before it was ready{last}; see {log}"


class Ready(logging.Handler):
    """The daemon's end of the pipe. Says one thing, once; until then it collects warnings to pass on."""

    def __init__(self, fd: int | None) -> None:
        super().__init__(logging.WARNING)
        self._fd = fd
        self._warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self._warnings.append(record.getMessage())

    def ready(self) -> None:
        logging.getLogger().removeHandler(self)
        self._say({"ready": True, "warnings": self._warnings})

    def failed(self, error: Exception, message: str) -> None:
        self._say({"class": type(error).__name__, "message": message})

    def _say(self, what: dict[str, object]) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.write(fd, json.dumps(what).encode() + b"\n")
        except BrokenPipeError:
            logger.warning("whoever started this mount did not wait for it")
        finally:
            os.close(fd)

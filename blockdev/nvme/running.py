"""How nvme-cli is run: the seam, and the one implementation that starts the program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import sh
import trio

from blockdev.errors import FabricsTimeout, NoNvmeCli

CONFIG: Final = "{config}"
"""Stands for the path of the private configuration, among the arguments."""
_GRACE: Final = 2.0
"""Seconds in which a killed program should be gone. One that waits in the kernel cannot be killed."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that has ended by itself."""

    code: int
    out: str
    err: str


class CommandRunner(Protocol):
    """Runs `nvme` with arguments. The real one is `run_nvme`; `testing.FakeFabric` has one for tests."""

    async def __call__(self, arguments: Sequence[str], *, timeout: float, config: str = "") -> Completed:
        """Run it to its end, whatever it exits with.

        :param timeout: seconds
        :param config: text of a file that only the program can read; its path replaces `CONFIG` in the arguments
        :raises NoNvmeCli: there is no such program
        :raises FabricsTimeout: it did not end in time, and was killed
        """


async def run_nvme(arguments: Sequence[str], *, timeout: float, config: str = "") -> Completed:
    """The `CommandRunner` that starts the installed program."""
    program = shutil.which("nvme", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    if program is None:
        raise NoNvmeCli("the program 'nvme' is not installed: install the package nvme-cli")
    # The thread is left alone when even the kill takes too long: the program is in the kernel then, and so are we.
    with trio.move_on_after(timeout + _GRACE):
        return await trio.to_thread.run_sync(
            _run, program, arguments, timeout, config, abandon_on_cancel=True
        )
    raise _too_long(arguments, timeout)


def _run(program: str, arguments: Sequence[str], timeout: float, config: str) -> Completed:
    fd = _in_memory(config) if config else None
    try:
        result = sh.Command(program)(
            *(argument.replace(CONFIG, f"/proc/self/fd/{fd}") for argument in arguments),
            _pass_fds=set() if fd is None else {fd}, _ok_code=list(range(256)), _return_cmd=True, _timeout=timeout,
            _tty_out=False, _encoding="utf-8", _decode_errors="replace",
            _env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except sh.TimeoutException:
        raise _too_long(arguments, timeout) from None
    except sh.SignalException as error:
        return Completed(1, "", f"it was ended by a signal ({error.exit_code})")
    finally:
        if fd is not None:
            os.close(fd)
    return Completed(
        result.exit_code, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
    )


def _in_memory(text: str) -> int:
    """A file without a name, which no other user can open. No MFD_CLOEXEC: the program inherits it."""
    fd = os.memfd_create("kvfs-nvme", 0)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _too_long(arguments: Sequence[str], timeout: float) -> FabricsTimeout:
    return FabricsTimeout(f"'nvme {arguments[0]}' did not end within {timeout:g} s")

"""The lab's end of the line to a guest's agent: starts commands, collects what they print, tells how they ended."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from scripts.lib.lab.errors import CommandFailed, CommandTimedOut, GuestGone, LabError
from scripts.lib.lab.wire import ABSENT, EXIT, HELLO, RUN, SIGNAL, STDERR, STDOUT, Frame, encode, receive

COMMAND_SECONDS = 300.0
"""How long a command may take if nothing else is said: everything is ten times slower under emulation, and more so
on a busy machine."""
_SEND_SECONDS = 60
_LOOK_SECONDS = 0.2
_KILLED_SECONDS = 30
_LINES = 40
"""Most lines of each output in a message."""
Tee = Callable[[int, bytes], None]
"""Called with 1 or 2 and a piece of what the command prints to stdout or stderr, from the channel's thread."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    argv: tuple[str, ...]
    code: int
    """The exit code; negative: the signal that ended it."""
    output: bytes
    errors: bytes

    @property
    def stdout(self) -> str:
        return self.output.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.errors.decode(errors="replace")

    def check(self) -> Finished:
        """Itself.

        :raises CommandFailed: if the exit code is not 0
        """
        if self.code:
            raise CommandFailed(self)
        return self

    def describe(self) -> str:
        """In words, with the end of what it printed."""
        return f"{shlex.join(self.argv)}: exit code {self.code}" + _ends(self.output, self.errors)


class Command:
    """A command in a guest, running or ended."""

    def __init__(self, channel: Channel, number: int, argv: tuple[str, ...], tee: Tee | None) -> None:
        self.argv = argv
        self._channel = channel
        self._number = number
        self._tee = tee
        self._output = {STDOUT: bytearray(), STDERR: bytearray()}
        self._code: int | None = None
        self._error: LabError | None = None
        self._changed = threading.Condition()

    def wait(self, seconds: float = COMMAND_SECONDS) -> Finished:
        """Wait for its end; kill it, and all that it started, if that does not come in time.

        :raises CommandTimedOut:
        :raises GuestGone:
        :raises LabError: it could not be started
        """
        with self._changed:
            if self._changed.wait_for(self._over, seconds):
                return self._finished()
        self.signal(signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(self._over, _KILLED_SECONDS)
            raise CommandTimedOut(f"{shlex.join(self.argv)}: not done after {seconds:.0f} s{self._printed()}")

    def wait_for(self, text: str, seconds: float = COMMAND_SECONDS) -> None:
        """Wait until it has printed `text` to either output.

        :raises CommandTimedOut: it has not, and is killed; also when it ended without
        """
        wanted = text.encode()

        def seen() -> bool:
            return any(wanted in output for output in self._output.values())

        with self._changed:
            self._changed.wait_for(lambda: seen() or self._over(), seconds)
            if seen():
                return
            message = f"{shlex.join(self.argv)}: did not print {text!r}{self._printed()}"
        self.signal(signal.SIGKILL)
        raise CommandTimedOut(message)

    def signal(self, number: int) -> None:
        """Send a signal to it and to all that it started, unless it has ended."""
        if not self._over():
            self._channel.send(Frame(self._number, SIGNAL, str(int(number)).encode()))

    def take(self, frame: Frame) -> None:
        """What the agent says about it; the channel calls this."""
        with self._changed:
            if frame.kind == EXIT:
                self._code = int(frame.payload)
            elif frame.kind == ABSENT:
                self._error = LabError(f"{self.argv[0]} cannot be run in the guest: {frame.payload.decode()}")
            else:
                self._output[frame.kind] += frame.payload
            self._changed.notify_all()
        if self._tee and frame.kind in self._output:
            self._tee(1 if frame.kind == STDOUT else 2, frame.payload)

    def lose(self) -> None:
        """The guest has gone; the channel calls this."""
        with self._changed:
            if self._code is None and self._error is None:
                self._error = GuestGone(f"the guest ended during {shlex.join(self.argv)}{self._printed()}")
            self._changed.notify_all()

    def _over(self) -> bool:
        return self._code is not None or self._error is not None

    def _finished(self) -> Finished:
        if self._error:
            raise self._error
        assert self._code is not None
        return Finished(self.argv, self._code, bytes(self._output[STDOUT]), bytes(self._output[STDERR]))

    def _printed(self) -> str:
        return _ends(self._output[STDOUT], self._output[STDERR])


class Channel:
    """The line to one boot of a guest. Its thread ends with the guest, or when it is closed."""

    def __init__(self, line: socket.socket) -> None:
        self._up = threading.Event()
        self._line = line
        # A guest that has stopped listening must not stop the lab. Receiving may take as long as it likes.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._commands: dict[int, Command] = {}
        self._gone = False
        self._numbers = count(1)
        self._thread = threading.Thread(target=self._listen, name="lab channel", daemon=True)
        self._thread.start()

    def wait_up(self, signs: Callable[[], object], stall: float, limit: float) -> str | None:
        """Wait until the agent has said hello; returns None, or why that is not to be expected any more.

        `signs` returns a value that changes with each sign of life. There is nothing more to expect after `stall`
        seconds without one, after `limit` seconds, or when the line is dead.
        """
        begun = last_sign = time.monotonic()
        before = signs()
        while not self._up.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if before != (before := signs()):
                last_sign = now
            if not self._thread.is_alive():
                return "it ended"
            if now - last_sign > stall:
                return f"no sign of life for {stall:.0f} s"
            if now - begun > limit:
                return f"not up after {limit:.0f} s"
        return None

    def start(self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, tee: Tee | None) -> Command:
        """Start a command.

        :raises GuestGone:
        """
        number = next(self._numbers)
        command = Command(self, number, tuple(argv), tee)
        with self._state:
            if self._gone:
                raise GuestGone(f"no guest to run {shlex.join(argv)} in")
            self._commands[number] = command
        head = json.dumps({"argv": list(argv), "env": dict(env)}).encode()
        self.send(Frame(number, RUN, head + b"\n" + stdin))
        return command

    def send(self, frame: Frame) -> None:
        """
        :raises GuestGone:
        """
        try:
            with self._sending:
                self._line.sendall(encode(frame))
        except OSError as error:
            raise GuestGone(f"the guest does not listen: {error}") from error

    def close(self) -> None:
        """Hang up, and wait for the thread."""
        with suppress(OSError):  # the guest has hung up already
            self._line.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._line.close()

    def _listen(self) -> None:
        while frame := self._receive():
            if frame.kind == HELLO:
                self._up.set()
                continue
            command = self._commands[frame.command]
            if frame.kind in (EXIT, ABSENT):
                del self._commands[frame.command]
            command.take(frame)
        with self._state:
            self._gone = True
        for command in self._commands.values():
            command.lose()

    def _receive(self) -> Frame | None:
        try:
            return receive(self._line.recv)
        except OSError:  # reset, when QEMU is killed with bytes unread
            return None


def _ends(output: bytes | bytearray, errors: bytes | bytearray) -> str:
    text = ""
    for name, printed in (("stdout", output), ("stderr", errors)):
        lines = bytes(printed).decode(errors="replace").splitlines()[-_LINES:]
        text += "".join(f"\n{name}| {line}" for line in lines)
    return text

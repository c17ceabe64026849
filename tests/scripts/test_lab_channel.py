"""The lab's line to its agent, with the real agent at the other end; no machine is booted."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.lib.lab.channel import Channel, Command, Finished
from scripts.lib.lab.errors import CommandFailed, CommandTimedOut, GuestGone, LabError
from scripts.lib.lab.wire import Frame, encode, receive

ROOT = Path(__file__).parents[2]
AGENT = "import sys; from scripts.lib.lab.agent import Agent; Agent(int(sys.argv[1])).serve()"
SECONDS = 60.0


class Line:
    """A channel whose agent is a process of this machine."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        with its:
            number = its.fileno()
            self.agent = subprocess.Popen(
                [sys.executable, "-c", AGENT, str(number)], cwd=ROOT, pass_fds=[number]
            )
        self.channel = Channel(ours)
        assert self.channel.wait_up(lambda: 0, SECONDS, SECONDS) is None

    def start(self, *argv: str, stdin: bytes = b"", **env: str) -> Command:
        return self.channel.start(argv, env, stdin, None)

    def run(self, *argv: str, stdin: bytes = b"", **env: str) -> Finished:
        return self.start(*argv, stdin=stdin, **env).wait(SECONDS)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.channel.close()
    line.agent.wait(SECONDS)


@given(
    st.lists(st.builds(Frame, st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary())), st.integers(1, 9)
)
def test_frames_survive_the_wire_in_any_pieces(frames: list[Frame], most: int) -> None:
    rest = bytearray(b"".join(map(encode, frames)))

    def read(length: int) -> bytes:
        piece = bytes(rest[: min(length, most)])
        del rest[: len(piece)]
        return piece

    assert [receive(read) for _ in frames] == frames
    assert receive(read) is None


def test_a_frame_that_is_cut_off_is_none() -> None:
    cut = io.BytesIO(encode(Frame(1, 2, b"abc"))[:-1])
    assert receive(cut.read) is None


def test_a_command_tells_all(line: Line) -> None:
    finished = line.run("sh", "-c", "cat; echo $GREETING >&2; exit 3", stdin=b"a\0b", GREETING="oops")
    assert (finished.code, finished.output, finished.stderr) == (3, b"a\0b", "oops\n")
    with pytest.raises(CommandFailed, match="oops"):
        finished.check()


def test_a_program_that_is_not_there(line: Line) -> None:
    with pytest.raises(LabError, match="no-such-program cannot be run"):
        line.run("no-such-program")


def test_much_output_arrives_whole_and_apart(line: Line) -> None:
    finished = line.run("sh", "-c", "head -c 3000000 /dev/zero & yes | head -c 3000000 >&2; wait")
    assert finished.output == bytes(3_000_000)
    assert finished.errors == b"y\n" * 1_500_000


def test_what_is_printed_is_told_as_it_comes(line: Line) -> None:
    heard: list[tuple[int, bytes]] = []
    command = line.channel.start(
        ["sh", "-c", "echo out; read line; echo err >&2"], {}, b"go\n", lambda *piece: heard.append(piece)
    )
    command.wait(SECONDS)
    assert sorted(heard) == [(1, b"out\n"), (2, b"err\n")]


def test_commands_run_side_by_side(line: Line, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    reader = line.start("cat", str(meeting))
    line.run("sh", "-c", f"echo together >{meeting}")
    assert reader.wait(SECONDS).stdout == "together\n"


def test_a_command_ends_at_its_deadline_with_all_that_it_started(line: Line, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    command = line.start("sh", "-c", f"exec 3<>{held}; sleep 1111 & echo begun; sleep 1111")
    command.wait_for("begun", SECONDS)
    with held.open("rb") as end:
        with pytest.raises(CommandTimedOut, match="begun"):
            command.wait(0)
        assert end.read() == b"", "nobody has the other end any more"


def test_waiting_for_output_that_does_not_come(line: Line) -> None:
    with pytest.raises(CommandTimedOut, match="did not print 'ready'"):
        line.start("echo", "steady").wait_for("ready", SECONDS)


def test_signals(line: Line) -> None:
    command = line.start("sh", "-c", "echo ready; exec sleep 1111")
    command.wait_for("ready", SECONDS)
    command.signal(signal.SIGTERM)
    assert command.wait(SECONDS).code == -signal.SIGTERM
    command.signal(signal.SIGTERM)  # too late, and no matter


def test_a_background_process_does_not_hold_its_command(line: Line) -> None:
    finished = line.run("sh", "-c", "sleep 1111 & echo $!")
    os.kill(int(finished.stdout), signal.SIGKILL)
    assert finished.code == 0


def test_commands_end_when_the_agent_does(line: Line) -> None:
    command = line.start("sh", "-c", "echo begun; sleep 5")
    command.wait_for("begun", SECONDS)
    line.agent.kill()
    with pytest.raises(GuestGone, match=r"(?s)the guest ended during.*begun"):
        command.wait(SECONDS)
    with pytest.raises(GuestGone):
        line.run("true")


@pytest.mark.parametrize(
    "stall, limit, says",
    [(0, 60, "no sign of life for 0 s"), (60, 0, "not up after 0 s")],
    ids=["stall", "limit"],
)
def test_a_guest_that_does_not_come_up(stall: float, limit: float, says: str) -> None:
    ours, its = socket.socketpair()
    channel = Channel(ours)
    assert channel.wait_up(lambda: 0, stall, limit) == says
    its.close()
    assert channel.wait_up(lambda: 0, SECONDS, SECONDS) == "it ended"
    channel.close()

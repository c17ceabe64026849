from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import outcome
import pytest
import trio

from blockdev.errors import NoSpace
from kvfs import control
from kvfs.errors import ControlError, ControlTimeout, ControlVersion, DeadMount, NotRunning, RemoteError


async def echo(arguments: control.Json, report: control.Report) -> control.Json:
    return {"echo": arguments}


async def count(arguments: control.Json, report: control.Report) -> control.Json:
    for step in range(3):
        await report({"step": step})
    return {"steps": 3}


async def full(arguments: control.Json, report: control.Report) -> control.Json:
    raise NoSpace("no room; add a device")


HANDLERS = {"echo": echo, "count": count, "full": full}


async def asked(
    path: Path, work: Callable[[], Any], handlers: Mapping[str, control.Handler] = HANDLERS
) -> Any:
    """The result of the blocking `work` while a server runs on `path`."""
    async with trio.open_nursery() as nursery:
        await nursery.start(control.serve, path, handlers)
        result = await outcome.acapture(trio.to_thread.run_sync, work)
        nursery.cancel_scope.cancel()
    return result.unwrap()


async def test_a_request_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert await asked(path, partial(control.ask, path, "echo", {"a": [1, 2**60]})) == {
        "echo": {"a": [1, 2**60]}
    }
    assert not path.exists()


async def test_progress_arrives_before_the_result(tmp_path: Path) -> None:
    path = tmp_path / "s"
    seen: list[control.Json] = []
    assert await asked(path, partial(control.ask, path, "count", on_progress=seen.append)) == {"steps": 3}
    assert seen == [{"step": 0}, {"step": 1}, {"step": 2}]


async def test_an_error_keeps_its_class_and_message(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(RemoteError, match="no room; add a device") as caught:
        await asked(path, partial(control.ask, path, "full"))
    assert caught.value.kind == "NoSpace"


async def test_the_socket_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    mode = await asked(path, lambda: path.stat().st_mode)
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_a_deep_folder_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    assert await asked(folder / "s", partial(control.ask, folder / "s", "echo")) == {"echo": {}}


async def test_an_unknown_request_and_another_version_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    with pytest.raises(RemoteError, match="does not know the request 'fly'") as caught:
        await asked(path, partial(control.ask, path, "fly"))
    assert caught.value.kind == ControlVersion.__name__

    def newer() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b'{"kvfs": 2, "request": "echo"}\n')
            return connection.makefile("rb").read()

    assert b"speaks version 1" in await asked(path, newer)


@pytest.mark.parametrize(
    "line", [b"GET / HTTP/1.1\n", b"[1]\n", b'{"kvfs": "x"}\n', b"\xff\xfe\n", b"x" * (control.LINE_MAX + 2)]
)
async def test_what_is_not_a_request_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "s"

    def send() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(line)
            return connection.makefile("rb").read()

    assert b'"error":{"class":"ControlError"' in await asked(path, send)


async def test_a_silent_client_is_sent_away(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path = tmp_path / "s"
    async with trio.open_nursery() as nursery:
        await nursery.start(control.serve, path, HANDLERS)
        stream = await trio.open_unix_socket(path)
        assert b"ControlTimeout" in await stream.receive_some()
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_cancels_its_request(tmp_path: Path) -> None:
    path = tmp_path / "s"
    started, cancelled = trio.Event(), trio.Event()

    async def forever(arguments: control.Json, report: control.Report) -> control.Json:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(control.serve, path, {"forever": forever})
        stream = await trio.open_unix_socket(path)
        await stream.send_all(b'{"kvfs": 1, "request": "forever"}\n')
        await started.wait()
        await stream.aclose()
        with trio.fail_after(10):
            await cancelled.wait()
        nursery.cancel_scope.cancel()


async def test_an_answer_that_ends_the_server_still_arrives(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with trio.open_nursery() as nursery:

        async def stop(arguments: control.Json, report: control.Report) -> control.Json:
            nursery.cancel_scope.cancel()
            return {"stopped": True}

        await nursery.start(control.serve, path, {"stop": stop})
        with trio.CancelScope(shield=True):
            result = await trio.to_thread.run_sync(partial(control.ask, path, "stop"))
    assert result == {"stopped": True}


def test_without_a_socket_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="nothing is mounted"):
        control.ask(tmp_path / "s", "status")
    assert not control.is_alive(tmp_path / "s")


def test_a_socket_without_a_listener_is_a_dead_mount(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(tmp_path / "s"))
    with pytest.raises(DeadMount, match="process is gone"):
        control.ask(tmp_path / "s", "status")
    assert not control.is_alive(tmp_path / "s")


async def test_a_leftover_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))
    assert await asked(path, partial(control.ask, path, "echo")) == {"echo": {}}


def serve_bytes(path: Path, answer: bytes | None) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    if answer is not None:

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        threading.Thread(target=run, daemon=True).start()
    return server


def test_a_mount_that_hangs_or_dies_or_talks_nonsense_is_named(tmp_path: Path) -> None:
    with serve_bytes(tmp_path / "a", None), pytest.raises(ControlTimeout, match=r"within 0\.05 s"):
        control.ask(tmp_path / "a", "status", timeout=0.05)
    with serve_bytes(tmp_path / "b", b""), pytest.raises(DeadMount, match="before it answered"):
        control.ask(tmp_path / "b", "status")
    with (
        serve_bytes(tmp_path / "c", b"hello\n"),
        pytest.raises(ControlError, match="not a line of kvfs's protocol"),
    ):
        control.ask(tmp_path / "c", "status")

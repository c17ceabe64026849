"""Between the command and who has a pool open, mounts first of all: a unix socket that carries versioned JSON lines.

    client  {"kvfs": 1, "request": "scrub", "arguments": {…}}
    server  {"kvfs": 1, "progress": {…}}        any number of times
            {"kvfs": 1, "result": {…}}          or {"kvfs": 1, "error": {"class": "PoolBusy", "message": "…"}}

One request a connection; the server closes after the last line. A client that goes away cancels its request. The
socket is 0600 in a folder that only its owner may enter. A socket file without a listener is what a killed mount leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import trio

from blockdev.errors import BlockError
from blockdev.forks import closed_in_children
from kvfs.errors import (
    ControlError,
    ControlTimeout,
    ControlVersion,
    DeadMount,
    KvfsError,
    NotRunning,
    RemoteError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvfs.state import PoolFolder

PROTOCOL = 1
LINE_MAX = 1 << 20
"""Bytes; a longer line is not ours."""
CLIENTS_MAX = 16
REQUEST_TIMEOUT = 10.0
"""Seconds that a client may take to say what it wants."""
SEND_TIMEOUT = 5.0
"""Seconds that a client may take to read its answer."""
SCRAPE_TIMEOUT = 1.0
"""Seconds that a process may take to say what it does, when many are asked in passing."""
_SUN_PATH_MAX = 107

Json = dict[str, Any]
Report = Callable[[Json], Awaitable[None]]
"""Sends the client one line of progress."""
Handler = Callable[[Json, Report], Awaitable[Json]]
"""Answers one kind of request. May raise BlockError, KvfsError and OSError, which reach the client."""


# --- server


async def serve(
    path: Path,
    handlers: Mapping[str, Handler],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer requests on a socket at `path` until cancelled. Replaces what is there: call it only where nobody else
    may listen, so that it can only be a leftover.
    """
    listener = trio.SocketListener(_listen(path))
    inode = _inode(path)
    limiter = trio.CapacityLimiter(CLIENTS_MAX)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream, limiter:
            await _answer(stream, handlers)

    try:
        with closed_in_children(listener.socket.fileno()):
            async with listener:
                task_status.started()
                await trio.serve_listeners(answer, [listener])
    finally:
        _remove(path, inode)


def _listen(path: Path) -> trio.socket.SocketType:
    """Bound under another name and renamed, so that it is never reachable with the wrong mode."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    spare.unlink(missing_ok=True)
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(spare) as address:
        plain.bind(address)
    spare.chmod(stat.S_IRUSR | stat.S_IWUSR)
    plain.listen(CLIENTS_MAX)
    spare.replace(path)
    return trio.socket.from_stdlib_socket(plain)


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _remove(path: Path, inode: int) -> None:
    """Remove our socket, unless a successor has put its own there."""
    with contextlib.suppress(FileNotFoundError):
        if _inode(path) == inode:
            path.unlink()


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A name for `path` that fits a socket address, however deep the state directory is."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _answer(stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
    async def send(kind: str, body: Json) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(_encode({"kvfs": PROTOCOL, kind: body}))

    async def report(body: Json) -> None:
        await send("progress", body)

    async with trio.open_nursery() as nursery:
        try:
            request = await _receive(stream)
            if request is None:
                return
            handler = _handler(request, handlers)
            nursery.start_soon(_cancel_when_closed, stream, nursery.cancel_scope)
            kind, body = "result", await handler(request.get("arguments") or {}, report)
        except (BlockError, KvfsError, OSError) as error:
            kind, body = "error", {"class": type(error).__name__, "message": str(error)}
        # A successful unmount ends the mount, and with it this task, but not before the client knows.
        with trio.move_on_after(SEND_TIMEOUT, shield=True):
            await send(kind, body)
        nursery.cancel_scope.cancel()


async def _cancel_when_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        while await stream.receive_some(LINE_MAX):
            pass
    scope.cancel()


async def _receive(stream: trio.SocketStream) -> Json | None:
    """The request; None if the client left without one."""
    received = bytearray()
    with trio.move_on_after(REQUEST_TIMEOUT):
        while b"\n" not in received:
            if len(received) > LINE_MAX:
                raise ControlError("the request is too long")
            chunk = await stream.receive_some()
            if not chunk:
                return None
            received += chunk
        return _decode(bytes(received))
    raise ControlTimeout("no request arrived in time")


def _handler(request: Json, handlers: Mapping[str, Handler]) -> Handler:
    if request["kvfs"] != PROTOCOL:
        raise ControlVersion(
            f"the mount speaks version {PROTOCOL} of the control protocol and the command version {request['kvfs']}: "
            "use the kvfs command of the version that made the mount, or unmount with 'umount' and mount again"
        )
    name = str(request.get("request"))
    if name not in handlers:
        raise ControlVersion(f"the mount does not know the request '{name}': it runs another version of kvfs")
    return handlers[name]


def _encode(message: Json) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _decode(line: bytes) -> Json:
    """:raises ControlError: not a line of this protocol"""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("kvfs"), int):
        raise ControlError("what arrived on the control socket is not a line of kvfs's protocol")
    return message


# --- client, for the command: synchronous


def ask(
    path: Path,
    request: str,
    arguments: Json | None = None,
    *,
    on_progress: Callable[[Json], None] | None = None,
    timeout: float = 30.0,
) -> Json:
    """Ask the mount behind the socket at `path`; `timeout` in seconds bounds the wait for each line.

    :raises NotRunning: no socket
    :raises DeadMount: a socket that nothing listens on
    :raises ControlTimeout, ControlVersion, ControlError:
    :raises RemoteError: the mount answered with an error
    """
    with _connect(path, timeout) as connection:
        try:
            connection.sendall(_encode({"kvfs": PROTOCOL, "request": request, "arguments": arguments or {}}))
            with connection.makefile("rb") as lines:
                return _result(lines, on_progress)
        except TimeoutError:
            raise ControlTimeout(
                f"the mount does not answer on {path} within {timeout:g} s: see its log, or end its process"
            ) from None
        except (BrokenPipeError, ConnectionResetError):
            raise _gone() from None


def _result(lines: IO[bytes], on_progress: Callable[[Json], None] | None) -> Json:
    while line := lines.readline(LINE_MAX):
        message = _decode(line)
        if "error" in message:
            raise RemoteError(str(message["error"]["class"]), str(message["error"]["message"]))
        if "result" in message:
            result: Json = message["result"]
            return result
        if on_progress is not None:
            on_progress(message.get("progress", {}))
    raise _gone()


def _gone() -> DeadMount:
    return DeadMount("the mount's process ended before it answered; its log tells why")


def statistics_of_caches(folder: PoolFolder) -> dict[str, Json]:
    """What all processes say that use a pool by the Cache API, by their labels. Who does not answer at once is left out."""
    found = {}
    for cache in folder.caches():
        with contextlib.suppress(ControlError):
            found[cache.label] = ask(cache.path, "stats", timeout=SCRAPE_TIMEOUT)
    return found


def is_alive(path: Path) -> bool:
    """Whether a process listens on the socket at `path`."""
    try:
        _connect(path, timeout=5.0).close()
    except (NotRunning, DeadMount):
        return False
    return True


def _connect(path: Path, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        with _short_path(path) as address:
            connection.connect(address)
    except FileNotFoundError:
        connection.close()
        raise NotRunning(f"nothing is mounted: there is no control socket {path}") from None
    except ConnectionRefusedError:
        connection.close()
        raise DeadMount(f"the control socket {path} is of a mount whose process is gone") from None
    except (BlockingIOError, TimeoutError):
        connection.close()
        raise ControlTimeout(f"the mount does not accept requests on {path}: see its log") from None
    except OSError:
        connection.close()
        raise
    return connection

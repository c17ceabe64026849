"""Requests that are answered at once: by whom, with what, and which are left to tasks."""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from collections.abc import Callable

import pytest
import trio

from blockdev.types import PAGE
from kvfs.fuse import wire
from kvfs.fuse.attributes import Attributes, RootAttributes
from kvfs.fuse.custody import Custody
from kvfs.fuse.desk import Desk
from kvfs.fuse.inodes import ROOT_NUMBER
from kvfs.fuse.reception import Reception
from kvfs.fuse.wire import Opcode, OpenFlag, Request
from tests.kvfs.fake_pool import EXTENT
from tests.kvfs.test_fuse_tree import Kernel, kernel

THREAD = 100


def message(opcode: Opcode, inode: int, arguments: bytes) -> bytes:
    """A request as the kernel sends it."""
    length = wire.IN_HEADER.size + len(arguments)
    return wire.IN_HEADER.pack(length, opcode, 7, inode, 1, 2, THREAD, 0, 0) + arguments


def parsed(packed: bytes) -> Request:
    return wire.parse(packed.ljust(wire.DATA_HEADER, b"\0"))


def desk_of(k: Kernel) -> Desk:
    root = RootAttributes(stat.S_IFDIR | 0o755, 0, 0, 0)
    return Desk(k.volume, k.tree, k.files, Attributes(k.volume, root))


def ask(desk: Desk, opcode: Opcode, inode: int, arguments: bytes = b"") -> bytes | None:
    packed = message(opcode, inode, arguments)
    return desk.answer(parsed(packed), packed)


def error_of(answer: bytes | None) -> int:
    assert answer is not None
    length, number, unique = wire.OUT_HEADER.unpack_from(answer)
    assert (length, unique) == (len(answer), 7)
    return -int(number)


def create(desk: Desk, name: bytes) -> tuple[int, int]:
    """Inode and handle of a new file."""
    arguments = wire.CREATE_ARGUMENTS.pack(os.O_WRONLY | os.O_CREAT, 0o100640, 0o022, 0) + name + b"\0"
    answer = ask(desk, Opcode.CREATE, ROOT_NUMBER, arguments)
    assert not error_of(answer)
    assert answer is not None
    inode = wire.ENTRY_OUT.unpack_from(answer)[3]
    handle, flags, _ = wire.OPEN_OUT.unpack_from(answer, wire.ENTRY_OUT.size)
    assert flags == OpenFlag.KEEP_CACHE
    return inode, handle


def release(desk: Desk, handle: int) -> bytes | None:
    return ask(desk, Opcode.RELEASE, 0, struct.pack("=QIIQ", handle, 0, 0, 0))


async def test_a_store_and_loads():
    async with kernel() as k:
        desk = desk_of(k)
        missing = ask(desk, Opcode.LOOKUP, ROOT_NUMBER, b"f\0")
        assert missing is not None
        assert wire.ENTRY_OUT.unpack_from(missing)[3] == 0
        inode, handle = create(desk, b"f")
        assert k.volume.inodes.get(inode).lookups == 1  # type: ignore[union-attr]
        assert (
            ask(desk, Opcode.LOOKUP, ROOT_NUMBER, b"f\0") is None
        )  # what is being written may have to be caught up with
        await k.files.write(handle, 0, bytes(EXTENT))
        assert release(desk, handle) is None
        packed = message(Opcode.FLUSH, inode, struct.pack("=QIIQ", handle, 0, 0, 0))
        assert not error_of(await desk.attend(parsed(packed), packed))
        assert not error_of(release(desk, handle))
        found = ask(desk, Opcode.LOOKUP, ROOT_NUMBER, b"f\0")
        assert found is not None
        entry = wire.ENTRY_OUT.unpack_from(found)
        assert (entry[3], entry[10]) == (inode, EXTENT)
        opened = ask(desk, Opcode.OPEN, inode, wire.OPEN_ARGUMENTS.pack(os.O_RDONLY, 0))
        assert opened is not None
        handle = wire.OPEN_OUT.unpack_from(opened, wire.OUT_HEADER.size)[0]
        assert b"".join(k.files.views(handle, 0, EXTENT) or ()) == bytes(EXTENT)
        assert not error_of(release(desk, handle))
        assert not k.pool.pins


async def test_a_rename():
    async with kernel() as k:
        desk = desk_of(k)
        await k.store(b"old", b"1")
        packed = message(Opcode.RENAME, ROOT_NUMBER, wire.RENAME_ARGUMENTS.pack(ROOT_NUMBER) + b"old\0new\0")
        assert not error_of(await desk.attend(parsed(packed), packed))
        assert await k.content(b"new") == b"1"
        assert error_of(await desk.attend(parsed(packed), packed)) == errno.ENOENT


async def test_what_must_wait_is_left_alone():
    async with kernel() as k:
        desk = desk_of(k)
        inode = await k.store(b"f", bytes(2 * PAGE))
        reading = wire.OPEN_ARGUMENTS.pack(os.O_RDONLY, 0)
        assert ask(desk, Opcode.OPEN, inode.number, wire.OPEN_ARGUMENTS.pack(os.O_WRONLY, 0)) is None
        assert inode.record is not None
        k.volume.versions.forget(inode.record.extents)
        assert ask(desk, Opcode.OPEN, inode.number, reading) is None  # its bytes are not in memory
        exists = wire.CREATE_ARGUMENTS.pack(os.O_CREAT, 0o100600, 0, 0) + b"f\0"
        assert ask(desk, Opcode.CREATE, ROOT_NUMBER, exists) is None
        k.pool.capacity = 0
        assert ask(desk, Opcode.CREATE, ROOT_NUMBER, exists.replace(b"f\0", b"g\0")) is None
        assert not k.volume.exists(k.root.directory, b"g")
        assert len(k.files) == 0


async def test_errors_are_answers():
    async with kernel() as k:
        desk = desk_of(k)
        assert error_of(ask(desk, Opcode.LOOKUP, 999, b"f\0")) == errno.ESTALE
        assert error_of(ask(desk, Opcode.LOOKUP, ROOT_NUMBER, b"f" * 256 + b"\0")) == errno.ENAMETOOLONG
        assert error_of(release(desk, 999)) == errno.EBADF


async def test_the_state_is_others_only_while_trio_waits():
    custody = Custody()
    tried = threading.Event()
    results: list[bool] = []

    def attempt() -> None:
        with custody.taken() as mine:
            results.append(mine)
        tried.set()

    with custody.kept():
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        assert results == [False]
        await trio.to_thread.run_sync(attempt)  # we wait for it
        assert results == [False, True]
    with custody.taken() as mine:
        assert mine


class FakeDesk:
    """Answers RELEASE and LOOKUP at once, if it is told to, and FLUSH in a task."""

    def __init__(self) -> None:
        self.willing = True

    def serves(self, opcode: int) -> bool:
        return opcode in (Opcode.RELEASE, Opcode.LOOKUP)

    def answer(self, request: Request, _: bytes) -> bytes | None:
        return wire.error_answer(request.unique, 0) if self.willing else None

    def attends(self, opcode: int) -> bool:
        return opcode == Opcode.FLUSH

    async def attend(self, request: Request, _: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return wire.error_answer(request.unique, 0)


class FakeRelay:
    def __init__(self) -> None:
        self.passed: list[int] = []
        self.has_releases = False

    def pass_on(self, request: Request, _: bytes) -> None:
        self.passed.append(request.opcode)


class Case:
    """A reception and what came of it."""

    def __init__(self) -> None:
        self.desk, self.relay = FakeDesk(), FakeRelay()
        self.answers: list[bytes] = []
        self.due: list[Callable[[], object]] = []
        self.reception = Reception(self.desk, self.relay, self.note, self.soon)  # type: ignore[arg-type]

    def note(self, parts: object) -> None:
        self.answers.append(parts[0])  # type: ignore[index]

    def soon(self, function: Callable[[], object]) -> bool:
        self.due.append(function)
        return True

    def take(self, opcode: Opcode) -> bool:
        packed = message(opcode, 1, b"")
        return self.reception.take(parsed(packed), packed)


async def test_while_trio_waits_the_desk_answers_at_once():
    case = Case()
    async with trio.open_nursery() as nursery:
        case.reception.begin(nursery)
        assert case.take(Opcode.LOOKUP)
        assert len(case.answers) == 1
        case.desk.willing = False
        assert not case.take(Opcode.LOOKUP)
        assert not case.take(Opcode.OPEN)
        assert case.relay.passed == [Opcode.LOOKUP, Opcode.OPEN]
        case.relay.has_releases, case.desk.willing = True, True
        assert not case.take(Opcode.LOOKUP)  # it must not overtake them
        assert case.relay.passed[2:] == [Opcode.LOOKUP]


async def test_while_trio_works_requests_keep_their_order():
    case = Case()
    async with trio.open_nursery() as nursery:
        case.reception.begin(nursery)
        with case.reception.custody.kept():
            assert not case.take(Opcode.RELEASE)
            assert not case.take(Opcode.OPEN)  # pyfuse3's, behind the RELEASE
            assert not case.take(Opcode.FLUSH)
            assert not case.answers
            assert not case.relay.passed
            [work_off] = case.due
            work_off()
            assert len(case.answers) == 1
            assert case.relay.passed == [Opcode.OPEN]
    assert len(case.answers) == 2


@pytest.mark.parametrize("opcode", [Opcode.LOOKUP, Opcode.FLUSH])
async def test_nothing_begins_after_the_end(opcode):
    case = Case()
    async with trio.open_nursery() as nursery:
        case.reception.begin(nursery)
        with case.reception.custody.kept():
            assert not case.take(opcode)
            case.reception.retire()
            case.due.pop()()
    assert not case.answers
    assert not case.relay.passed

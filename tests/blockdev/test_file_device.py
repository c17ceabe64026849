"""Files and kernel block devices: opening, deadlines, zombies, errors."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from blockdev import begun, file_device
from blockdev.errors import DeviceClosed, DeviceError, DeviceGivenUp, DeviceLost, DeviceTimeout
from blockdev.file_device import FileDevice, create_file, open_file_device
from blockdev.kernel_aio import AioQueue
from blockdev.memory import page_buffer
from blockdev.raw_file import RawFile
from blockdev.types import MIB, PAGE
from tests.blockdev.block_devices import GatedDevice, GatedFile, GatedWrites, allocated, loop_device, run

SIZE = MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return allocated(tmp_path / "device", SIZE)


async def until(condition: Callable[[], bool]) -> None:
    """Threads have no event to wait for: let the loop turn until they have got there."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - see above
            await trio.sleep(0.001)


def is_open(fd: int, path: Path) -> bool:
    try:
        return Path(f"/proc/self/fd/{fd}").readlink() == path
    except FileNotFoundError:
        return False


async def test_bytes_are_in_the_file(path: Path) -> None:
    device = await open_file_device(str(path))
    assert (device.name, device.size, device.block_size, device.is_file) == (str(path), SIZE, PAGE, True)
    data = page_buffer(2 * PAGE)
    data[:] = os.urandom(2 * PAGE)
    await device.write_from(PAGE, data)
    await device.flush()
    assert path.read_bytes()[PAGE : 3 * PAGE] == data
    await device.discard(PAGE, PAGE)
    await device.aclose()
    assert path.read_bytes()[PAGE : 3 * PAGE] == data
    assert path.stat().st_blocks * 512 >= SIZE


async def test_a_partial_last_page_is_not_used(path: Path) -> None:
    os.truncate(path, SIZE - 100)
    device = await open_file_device(path, writable=False)
    assert device.size == SIZE - PAGE
    await device.aclose()


async def test_holes_are_filled_when_it_is_opened_for_writing(path: Path) -> None:
    path.write_bytes(b"kept")
    os.truncate(path, SIZE)
    reader = await open_file_device(path, writable=False)
    await reader.aclose()
    assert path.stat().st_blocks * 512 < SIZE
    device = await open_file_device(path)
    await device.aclose()
    assert path.stat().st_blocks * 512 >= SIZE
    assert path.read_bytes()[:5] == b"kept\0"


async def test_holes_that_cannot_be_filled(path: Path) -> None:
    os.truncate(path, 1 << 43)
    with pytest.raises(DeviceError, match=r"needs 8796\d+ bytes, its file system has") as info:
        await open_file_device(path)
    assert info.value.errno == errno.ENOSPC


async def test_reading_only(path: Path) -> None:
    device = await open_file_device(path, writable=False)
    await device.read_into(0, page_buffer(PAGE))
    for operation in (
        device.write_from(0, page_buffer(PAGE)),
        device.flush(),
        device.discard(0, PAGE),
    ):
        with pytest.raises(DeviceError) as info:
            await operation
        assert info.value.errno == errno.EROFS
    await device.aclose()


async def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    for name, number in (
        ("absent", errno.ENOENT),
        ("empty", errno.EINVAL),
        ("fifo", errno.ENOTBLK),
        (".", errno.ENOTBLK),
    ):
        with pytest.raises(DeviceError) as info:
            await open_file_device(tmp_path / name)
        assert info.value.errno == number, name
        assert info.value.device == str(tmp_path / name)


async def test_create(tmp_path: Path) -> None:
    path = tmp_path / "new"
    await create_file(path, SIZE)
    status = path.stat()
    assert (status.st_size, status.st_mode & 0o777) == (SIZE, 0o600)
    assert status.st_blocks * 512 >= SIZE
    with pytest.raises(DeviceError) as info:
        await create_file(path, SIZE)
    assert info.value.errno == errno.EEXIST
    assert path.stat().st_size == SIZE


async def test_create_without_room(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"needs .* bytes") as info:
        await create_file(tmp_path / "new", 1 << 43)
    assert info.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


async def test_media_that_end_early_are_an_error(path: Path) -> None:
    device = await open_file_device(path)
    os.truncate(path, SIZE // 2)
    with pytest.raises(DeviceError) as info:
        await device.read_into(SIZE // 2 - PAGE, page_buffer(2 * PAGE))
    assert info.value.errno == errno.EIO
    await device.aclose()


@pytest.fixture
def threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without transfers that are begun."""

    def refuse(_: AioQueue, __: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(AioQueue, "__init__", refuse)


@pytest.mark.usefixtures("threads_only")
async def test_errors_of_the_system_keep_their_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = await open_file_device(path)

    def fail(*_: object) -> int:
        raise OSError(errno.EREMOTEIO, os.strerror(errno.EREMOTEIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(DeviceError, match="Remote I/O error") as info:
        await device.read_into(0, page_buffer(PAGE))
    assert info.value.errno == errno.EREMOTEIO
    await device.aclose()


@pytest.mark.usefixtures("threads_only")
async def test_mistakes_in_the_thread_are_not_taken_for_success(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await open_file_device(path)

    def fail(*_: object) -> int:
        raise ValueError("operation forbidden on released memoryview object")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(ValueError, match="forbidden"):
        await device.read_into(0, page_buffer(PAGE))
    assert device.statistics().running == 0
    await device.aclose()


@pytest.mark.usefixtures("threads_only")
async def test_no_thread_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = await open_file_device(path, queue_depth=1)

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", fail)
        for _ in range(2):
            with pytest.raises(DeviceError, match="no thread") as info:
                await device.read_into(0, page_buffer(PAGE))
            assert info.value.errno == errno.EAGAIN
    await device.read_into(0, page_buffer(PAGE))
    await device.aclose()


def test_an_interrupt_leaves_a_zombie(path: Path) -> None:
    async def main() -> None:
        device = GatedDevice(path)
        device.file.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt, device)
            with pytest.raises(KeyboardInterrupt):
                await device.read_into(0, page_buffer(PAGE))
            assert device.statistics().zombies == 1
            device.file.gate.set()
            await until(lambda: device.statistics().zombies == 0)
            await device.aclose()

    @trio.lowlevel.enable_ki_protection  # so that it reaches the main task
    async def interrupt(device: GatedDevice) -> None:
        await until(lambda: device.file.calls == 1)
        signal.raise_signal(signal.SIGINT)

    # In the background of a shell the signal is ignored, and trio leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)


async def test_long_transfers_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = await open_file_device(path)
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:PAGE]], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: pwritev(fd, [buffers[0][:PAGE]], at))
    data, found = page_buffer(5 * PAGE), page_buffer(5 * PAGE)
    data[:] = os.urandom(5 * PAGE)
    await device.write_from(PAGE, data)
    await device.read_into(PAGE, found)
    assert found == data
    await device.aclose()


async def test_waiting_in_the_queue_can_be_cancelled(path: Path) -> None:
    device = GatedDevice(path, queue_depth=1)
    device.file.gate.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.read_into, 0, page_buffer(PAGE))
        await until(lambda: device.file.calls == 1)
        with trio.move_on_after(0.02) as scope:
            await device.write_from(0, page_buffer(PAGE))
        assert scope.cancelled_caught
        assert device.statistics().waiting == 0
        device.file.gate.set()
    assert device.file.calls == 1
    assert device.statistics().running == 0
    await device.aclose()


async def test_a_queue_full_of_zombies_answers_in_time(path: Path) -> None:
    device = GatedDevice(path, queue_depth=2, io_timeout=0.05)
    device.file.gate.clear()
    kinds = []

    async def read() -> None:
        with pytest.raises(DeviceTimeout) as info:
            await device.read_into(0, page_buffer(PAGE))
        kinds.append(info.value.pending is not None)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(read)
    assert sorted(kinds) == [False, False, True, True]
    with pytest.raises(DeviceLost, match="more than 1 operations are stuck"):
        await device.flush()
    assert device.statistics().zombies == 2
    device.file.gate.set()
    await until(lambda: device.statistics().zombies == 0)
    assert device.statistics().running == 0
    with pytest.raises(DeviceLost):
        await device.flush()
    await device.aclose()


async def test_zombies_up_to_half_the_queue_are_borne(path: Path) -> None:
    device = GatedDevice(path, queue_depth=4, io_timeout=0.05)
    for _ in range(2):
        device.file.gate.clear()
        with pytest.raises(DeviceTimeout):
            await device.read_into(0, page_buffer(PAGE))
    device.file.gate.set()
    await device.read_into(0, page_buffer(PAGE))
    await device.aclose()


async def test_a_late_read_lands_in_its_own_buffer(path: Path) -> None:
    path.write_bytes(b"x" * SIZE)
    device = GatedDevice(path, io_timeout=0.05)
    device.file.gate.clear()
    buffer = page_buffer(PAGE)
    with pytest.raises(DeviceTimeout) as info:
        await device.read_into(0, buffer)
    pending = info.value.pending
    assert pending is not None
    assert bytes(buffer) == bytes(PAGE)
    calls: list[str] = []
    pending.add_done_callback(lambda: calls.append("at the end"))
    device.file.gate.set()
    await until(lambda: pending.done)
    pending.add_done_callback(lambda: calls.append("afterwards"))
    assert calls == ["at the end", "afterwards"]
    assert bytes(buffer) == b"x" * PAGE
    await device.aclose()


async def test_the_descriptor_outlives_what_is_stuck(path: Path) -> None:
    device = GatedDevice(path, io_timeout=0.05)
    device.file.gate.clear()
    with pytest.raises(DeviceTimeout):
        await device.write_from(0, page_buffer(PAGE))
    await device.aclose()
    assert is_open(device.file.fd, path)
    with pytest.raises(DeviceClosed):
        await device.flush()
    device.file.gate.set()
    await until(lambda: not is_open(device.file.fd, path))


def test_what_is_stuck_outlives_the_event_loop(path: Path) -> None:
    devices: list[GatedDevice] = []

    async def main() -> None:
        device = GatedDevice(path, io_timeout=0.05)
        devices.append(device)
        device.file.gate.clear()
        with pytest.raises(DeviceTimeout):
            await device.read_into(0, page_buffer(PAGE))
        await device.aclose()

    trio.run(main)
    devices[0].file.gate.set()
    trio.run(until, lambda: not is_open(devices[0].file.fd, path))


async def test_who_waits_in_the_queue_learns_of_loss_and_close(path: Path) -> None:
    device = GatedDevice(path, queue_depth=1)
    device.file.gate.clear()

    async def expect_closed() -> None:
        with pytest.raises(DeviceClosed):
            await device.read_into(0, page_buffer(PAGE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.read_into, 0, page_buffer(PAGE))
        await until(lambda: device.file.calls == 1)
        nursery.start_soon(expect_closed)
        await trio.testing.wait_all_tasks_blocked()
        await device.aclose()
        device.file.gate.set()
    assert device.file.calls == 1
    assert device.statistics().running == 0


async def test_who_waits_in_the_queue_learns_that_it_is_given_up(path: Path) -> None:
    device = GatedDevice(path, queue_depth=1)
    device.file.gate.clear()
    kinds = []

    async def read() -> None:
        try:
            await device.read_into(0, page_buffer(PAGE))
        except DeviceError as error:
            kinds.append(type(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: device.file.calls == 1)
        nursery.start_soon(read)
        await until(lambda: device.statistics().waiting == 1)
        device.give_up()
    assert set(kinds) == {DeviceGivenUp, DeviceLost}
    assert device.file.calls == 1
    assert device.statistics().zombies == 1
    device.file.gate.set()
    await until(lambda: device.statistics().running == 0)
    await device.aclose()


async def test_the_kernel_keeps_what_was_begun_when_the_device_is_given_up(path: Path) -> None:
    """Nobody waits for it, before or after; buffer, place and descriptor are its own until it ends."""
    writes = GatedWrites(4)
    device = GatedDevice(path, begun=writes)
    await device.write_from(0, page_buffer(PAGE))  # where the system has no such writes, it is found out
    device.hold()
    begun = device.begin_write(PAGE, page_buffer(PAGE))
    if begun is None:
        pytest.skip("the file system of this folder has no writes that are begun")
    begun.start()
    device.give_up()
    began = trio.current_time()
    with pytest.raises(DeviceGivenUp) as info:
        await begun.land()
    assert trio.current_time() - began < 30, "half its deadline"
    assert (device.statistics().zombies, device.statistics().running) == (1, 1)
    with pytest.raises(DeviceLost, match="it was given up"):
        device.begin_write(0, page_buffer(PAGE))
    await device.aclose()
    pending = info.value.pending
    assert pending is not None
    assert not pending.done
    assert is_open(device.file.fd, path)
    device.let_go()
    await until(lambda: pending.done)
    assert (device.statistics().zombies, device.statistics().running) == (0, 0)
    assert not is_open(device.file.fd, path)


async def test_what_the_kernel_would_not_begin_is_not_tried_again_when_the_device_is_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(AioQueue, "begin", refuse)
    device = GatedDevice(path, begun=GatedWrites(4))
    begun = device.begin_write(0, page_buffer(PAGE))
    assert begun is not None
    device.give_up()
    begun.start()
    await until(lambda: device.statistics().running == 0)
    with pytest.raises(DeviceLost, match="it was given up"):
        await begun.land()
    assert device.file.calls == 0
    await device.aclose()


async def test_opening_has_a_deadline(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, opened = threading.Event(), []

    def open_slowly(where: Path, *, writable: bool) -> RawFile:
        gate.wait(30)
        opened.append(GatedFile(where))
        return opened[0]

    monkeypatch.setattr(file_device, "open_raw", open_slowly)
    with pytest.raises(DeviceTimeout, match="could not be opened") as info:
        await open_file_device(path, io_timeout=0.05)
    gate.set()
    pending = info.value.pending
    assert pending is not None
    await until(lambda: pending.done)
    assert not is_open(opened[0].fd, path)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EIO])
async def test_discard_where_it_is_not_supported(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    raw = RawFile(os.open(path, os.O_RDWR | os.O_DIRECT), size=SIZE, block_size=PAGE, is_file=False)
    device = FileDevice("a block device", raw)

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    if number == errno.EOPNOTSUPP:
        await device.discard(0, PAGE)
    else:
        with pytest.raises(DeviceError):
            await device.discard(0, PAGE)
    await device.aclose()


async def test_file_systems_without_direct_io(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(where: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(where, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DeviceError, match="does not support O_DIRECT"):
        await open_file_device(path)


@pytest.mark.loop
async def test_a_mounted_device_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    with loop_device(allocated(tmp_path / "backing", 4 * MIB)) as path:
        run("mkfs.ext4", "-q", str(path))  # of e2fsprogs, on every Linux
        run("mount", str(path), str(folder))
        try:
            with pytest.raises(DeviceError, match="in use") as info:
                await open_file_device(path)
            assert info.value.errno == errno.EBUSY
            reader = await open_file_device(path, writable=False)
            await reader.aclose()
        finally:
            run("umount", str(folder))

        async def open_and_close() -> None:
            device = await open_file_device(path)
            await device.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(open_and_close)


@pytest.mark.loop
async def test_discard_reaches_a_block_device(tmp_path: Path) -> None:
    backing = allocated(tmp_path / "backing", 4 * MIB)
    with loop_device(backing) as path:
        device = await open_file_device(path)
        await device.write_from(0, page_buffer(MIB))
        await device.flush()
        await device.discard(0, MIB)
        await device.aclose()
        assert backing.stat().st_blocks * 512 <= 3 * MIB


@pytest.mark.loop
async def test_blocks_of_512_bytes(tmp_path: Path) -> None:
    with loop_device(allocated(tmp_path / "backing", MIB + 512)) as path:
        device = await open_file_device(path)
        assert device.size == MIB + 512
        await device.write_from(MIB, page_buffer(512))
        await device.aclose()


async def test_small_writes_take_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = await open_file_device(path)
    data = page_buffer(PAGE)
    data[:] = os.urandom(PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", lambda *_: pytest.fail("a thread was started"))
        await device.write_from(PAGE, data)
    assert path.read_bytes()[PAGE : 2 * PAGE] == data
    assert device.statistics().running == 0
    await device.aclose()


@pytest.mark.parametrize("pages", [1, 256])
async def test_a_read_takes_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    device = await open_file_device(path)
    data, into = page_buffer(pages * PAGE), page_buffer(pages * PAGE)
    data[:] = os.urandom(pages * PAGE)
    await device.write_from(0, data)
    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", lambda *_: pytest.fail("a thread was started"))
        await device.read_into(0, into)
    assert into == data
    assert device.statistics().running == 0
    await device.aclose()


async def test_reads_that_the_kernel_would_have_to_wait_for_are_not_begun_for_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    asked = 0

    def refuse(*_: object, **__: object) -> None:
        nonlocal asked
        asked += 1
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(AioQueue, "begin", refuse)
    device = await open_file_device(path)
    for expected in (1, 2, *range(3, begun._PATIENCE + 1), begun._PATIENCE, begun._PATIENCE):
        await device.read_into(0, page_buffer(PAGE))
        assert asked == expected
    mock_clock.jump(begun._REST)
    await device.read_into(0, page_buffer(PAGE))
    assert asked == begun._PATIENCE + 1
    await device.aclose()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP])
async def test_what_the_kernel_would_not_begin_takes_a_thread_before_anybody_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(AioQueue, "begin", refuse)
    device = await open_file_device(path)
    data = page_buffer(32 * PAGE)
    data[:] = os.urandom(32 * PAGE)
    begun = device.begin_write(PAGE, data)
    assert begun is not None
    begun.start()
    await until(lambda: path.read_bytes()[PAGE : 33 * PAGE] == data)
    await begun.land()
    assert (device.begin_write(0, data) is None) == (number == errno.EOPNOTSUPP)
    assert device.statistics().zombies == 0
    await device.aclose()

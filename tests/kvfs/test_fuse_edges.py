"""Small parts of the mount: what the kernel is told, which errors it gets, what is tuned."""

from __future__ import annotations

import errno
import functools
import threading
from collections.abc import Iterator

import pyfuse3
import pytest

from blockdev import errors as block
from blockdev.types import ROOT
from kvfs import errors as product
from kvfs.fuse import tune as tuning
from kvfs.fuse.errno_map import answers, errno_of
from kvfs.fuse.inodes import Place
from kvfs.fuse.notify import Notifier
from kvfs.fuse.retries import Retries


def _subclasses(base: type[Exception]) -> Iterator[type[Exception]]:
    for child in base.__subclasses__():
        yield child
        yield from _subclasses(child)


# answers


@pytest.mark.parametrize(
    "kind",
    [*_subclasses(block.BlockError), *_subclasses(product.FramesError)],
    ids=lambda kind: kind.__name__,
)
def test_every_error_of_the_layers_below_has_an_answer(kind):
    error = kind.__new__(kind)
    if isinstance(error, block.DeviceError):
        error.errno = errno.ENODEV
    assert errno_of(error) in errno.errorcode


@pytest.mark.parametrize(
    "error,number",
    [
        (block.NoSpace(""), errno.ENOSPC),
        (block.RecordTooLarge(""), errno.ENOSPC),
        (block.Missing(""), errno.ENOENT),
        (block.DeviceTimeout("d", errno.ETIMEDOUT, "", None), errno.EIO),
        (block.WriteFailed("d", errno.ENOSPC, ""), errno.ENOSPC),
        (block.WriteFailed("d", errno.EIO, ""), errno.EIO),
        (block.Raced(""), errno.EIO),
        (product.NoFrames(""), errno.EIO),
        (OSError(errno.EMFILE, ""), errno.EMFILE),
        (KeyError(""), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_answers(error, number):
    assert errno_of(error) == number


async def test_what_should_never_happen_is_logged(expect_log):
    expect_log("handler failed", count=1)

    @answers
    async def handler() -> None:
        raise ZeroDivisionError

    with pytest.raises(pyfuse3.FUSEError) as caught:
        await handler()
    assert caught.value.errno == errno.EIO


async def test_an_answer_passes_unchanged():
    @answers
    async def handler() -> None:
        raise pyfuse3.FUSEError(errno.EXDEV)

    with pytest.raises(pyfuse3.FUSEError) as caught:
        await handler()
    assert caught.value.errno == errno.EXDEV


# notifications


FINE, UNKNOWN, BAD, TOO_MANY = 10, 11, 12, 14


class _Kernel:
    """Takes notifications, when it is let."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.first = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, inode: int) -> None:
        self.told.append(inode)
        self.first.set()
        assert self.go_on.wait(30)
        if inode == UNKNOWN:
            raise FileNotFoundError
        if inode == BAD:
            raise OSError(errno.EIO, "bad")


def test_notifications_are_kept_once_and_bounded():
    kernel = _Kernel()
    notifier = Notifier(kernel, 3)
    notifier.start()
    notifier.attributes(FINE)
    assert kernel.first.wait(30)
    for inode in (UNKNOWN, BAD, BAD, 13, TOO_MANY):
        notifier.attributes(inode)
    statistics = notifier.statistics()
    assert (statistics.queued, statistics.dropped) == (3, 1)
    kernel.go_on.set()
    while notifier.statistics().queued:
        kernel.first.wait(0.01)
    notifier.close()
    assert kernel.told == [FINE, UNKNOWN, BAD, 13]
    statistics = notifier.statistics()
    assert (statistics.sent, statistics.unknown, statistics.failed) == (2, 1, 1)


def test_a_closed_notifier_takes_nothing():
    notifier = Notifier(_Kernel(), 3)
    notifier.close()
    notifier.attributes(FINE)
    assert notifier.statistics().queued == 0


# retries


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


F, G = (ROOT, b"f"), (ROOT, b"g")


def is_writing(retries: Retries, thread: int, place: Place) -> bool:
    retry = retries.of(thread, place)
    return retry is not None and retry.writing


def test_a_retry_belongs_to_its_thread():
    retries = Retries(_Clock())
    retries.expect(7, F, writing=True)
    retries.expect(8, F, writing=False)
    assert is_writing(retries, 7, F)
    assert is_writing(retries, 7, G)  # renamed meanwhile
    assert not is_writing(retries, 8, F)
    assert not is_writing(retries, 9, F)
    assert retries.take(7, G)
    assert not retries.take(7, F)
    assert retries.take(8, F)


def test_foreign_threads_are_told_apart_by_name():
    retries = Retries(_Clock())
    retries.expect(0, F, writing=True)
    assert is_writing(retries, 0, F)
    assert not is_writing(retries, 0, G)
    assert not retries.take(0, G)
    assert retries.take(0, F)


def test_a_retry_ends_when_its_name_is_missed_twice():
    retries = Retries(_Clock())
    retries.missed(7, F)
    retries.expect(7, F, writing=True)
    retries.missed(7, F)
    assert is_writing(retries, 7, F)
    retries.missed(7, F)
    assert not retries.take(7, F)


def test_what_a_look_up_found_is_given_back_when_the_retry_ends():
    clock = _Clock()
    released: list[str] = []
    retries = Retries(clock)

    def find(thread: int, what: str) -> None:
        retry = retries.of(thread, F)
        assert retry is not None
        retries.found(retry, functools.partial(released.append, what))

    retries.expect(7, F, writing=False)
    find(7, "first")
    find(7, "second")
    assert released == ["first"]
    retry = retries.take(7, F)
    assert retry is not None
    assert retry.looked_up
    assert released == ["first"]
    retry.release()
    retries.expect(7, F, writing=False)
    find(7, "third")
    retries.expect(7, F, writing=False)
    find(7, "fourth")
    retries.expect(8, F, writing=False)
    find(8, "fifth")
    clock.now = 61.0
    assert retries.take(9, F) is None
    assert released == ["first", "second", "third", "fourth", "fifth"]


def test_a_retry_does_not_last():
    clock = _Clock()
    retries = Retries(clock)
    retries.expect(7, F, writing=True)
    clock.now = 61.0
    assert not is_writing(retries, 7, F)
    assert not retries.take(7, F)


def test_retries_are_bounded():
    retries = Retries(_Clock())
    for thread in range(1, 5001):
        retries.expect(thread, F, writing=True)
    assert not is_writing(retries, 1, F)
    assert is_writing(retries, 5000, F)


# tuning


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Settings of a mount 0:77, as /sys has them."""
    bdi, connection = tmp_path / "bdi" / "0:77", tmp_path / "connections" / "77"
    for folder in (bdi, connection):
        folder.mkdir(parents=True)
    (bdi / "read_ahead_kb").write_text("128\n")
    (connection / "max_background").write_text("12\n")
    (connection / "congestion_threshold").write_text("4096\n")
    monkeypatch.setattr(tuning, "BDI", tmp_path / "bdi")
    monkeypatch.setattr(tuning, "CONNECTIONS", tmp_path / "connections")
    return tmp_path


async def test_settings_are_raised_and_never_lowered(system):
    await tuning.tune(77)
    assert (system / "bdi" / "0:77" / "read_ahead_kb").read_text() == "16384"
    assert (system / "connections" / "77" / "max_background").read_text() == "128"
    assert (system / "connections" / "77" / "congestion_threshold").read_text() == "4096\n"


async def test_what_cannot_be_set_is_logged(system, expect_log):
    (system / "bdi" / "0:77" / "read_ahead_kb").unlink()
    expect_log("read_ahead_kb stays as it is", count=1)
    await tuning.tune(77)
    assert (system / "connections" / "77" / "max_background").read_text() == "128"

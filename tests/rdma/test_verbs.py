"""What the verbs need of a host and say when it lacks that, and memory that many share. The rest takes a device: tests/lab."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma.cuda import GpuSpan
from rdma.errors import LockRefused, MemoryRefused, NoVerbs, TransportBroken
from rdma.host_memory import PAGE, address_of, host_memory
from rdma.nvme_wire import CmRequest
from rdma.testing import FakeCuda
from rdma.verbs.connection import Slots
from rdma.verbs.library import Library, load, with_descriptor
from rdma.verbs.memory import Memory
from rdma.verbs.numbers import Access, WorkStatus, in_words
from tests.test_project import ROOT


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """As sysfs has them on a host with one."""
    (tmp_path / "infiniband/rxe0").mkdir(parents=True)
    return tmp_path / "infiniband"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty pyverbs."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "site/pyverbs"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder.parent)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        del sys.modules[name]


def test_a_host_without_a_device(tmp_path: Path, devices: Path) -> None:
    for folder in (tmp_path / "none", devices / "rxe0"):
        with pytest.raises(NoVerbs, match=r"no RDMA device: load the driver .*rdma link add rxe0"):
            load(folder)


def test_pyverbs_is_not_installed(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(NoVerbs, match=r"apt install python3-pyverbs.*--system-site-packages"):
        load(devices)


def test_pyverbs_is_for_another_python(devices: Path, installed: Path) -> None:
    with pytest.raises(
        NoVerbs, match=rf"is not for Python {sys.version_info.major}\.{sys.version_info.minor} "
    ):
        load(devices)


def test_pyverbs_does_not_fit_and_leaves_logging_alone(devices: Path, installed: Path) -> None:
    said = "libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found"
    (installed / "cmid.py").write_text(
        f"import logging\nlogging.getLogger().addHandler(logging.NullHandler())\nraise ImportError({said!r})\n"
    )
    before = logging.getLogger().handlers[:]
    with pytest.raises(NoVerbs, match=f"does not fit the installed rdma-core .*{re.escape(said)}"):
        load(devices)
    assert logging.getLogger().handlers == before


def test_what_is_used_of_pyverbs_is_in_the_stubs() -> None:
    for name, kind in Library.__annotations__.items():
        found = re.findall(r"type\[(\w+)\]", str(kind))
        stubs = "".join(path.read_text() for path in (ROOT / "stubs/pyverbs").glob("*.pyi"))
        assert f"class {found[0]}" in stubs, name


def test_numbers_in_words() -> None:
    assert in_words(WorkStatus.NO_ANSWER_TO_RETRIES) == "no answer to retries (12)"


# ── descriptors ──────────────────────────────────────────────────────────────────────────────────────────────


class Channel:
    """Opens a file, and as many others of its kind as something else in the process does at that moment."""

    def __init__(self, path: Path, others: list[int]) -> None:
        self._files = [path.open("rb") for _ in range(1 + (others.pop() if others else 0))]
        self.descriptor = self._files[0].fileno()

    def close(self) -> None:
        for file in self._files:
            file.close()


class Failing:
    """A library whose calls fail with `error_code`."""

    SystemError = OSError

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code

    def __call__(self) -> Channel:
        error = OSError("refused")
        error.error_code = self.error_code  # type: ignore[attr-defined]
        raise error


@pytest.mark.parametrize("others", [[], [1], [2, 1]])
def test_descriptors_are_found_and_never_block(tmp_path: Path, others: list[int]) -> None:
    path = tmp_path / "channel"
    path.touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    made, descriptor = with_descriptor(cast("Any", Failing(0)), lambda: Channel(path, others), str(path))
    assert descriptor == made.descriptor
    assert not os.get_blocking(descriptor)
    made.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    "error_code, error, words",
    [
        (errno.ENODEV, NoVerbs, "modprobe rdma_ucm"),
        (errno.EACCES, NoVerbs, "run it as root, or give its user the right"),
        (errno.EMFILE, TransportBroken, "Too many open files"),
    ],
)
def test_channels_that_the_system_refuses(error_code: int, error: type[Exception], words: str) -> None:
    failing = Failing(error_code)
    with pytest.raises(error, match=words):
        with_descriptor(cast("Any", failing), failing, "/dev/infiniband/rdma_cm")


# ── sends ────────────────────────────────────────────────────────────────────────────────────────────────────


class FakeRequests:
    """Work requests that say what they are made of."""

    def MR(self, domain: object, length: int, access: int, address: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(lkey=1)

    def SGE(self, address: int, length: int, key: int) -> range:  # noqa: N802
        return range(address, address + length)

    def SendWR(self, **what: object) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**what)

    RecvWR = SendWR


@given(st.integers(2, 9), st.lists(st.booleans(), max_size=200))
def test_sends_have_memory_of_their_own_until_they_have_ended(entries: int, steps: list[bool]) -> None:
    """Also those that do not say that they have: the next one that does says it for them."""
    slots: Any = Slots(cast("Any", FakeRequests()), cast("Any", None), CmRequest(1, entries, entries))
    under_way: deque[Any] = deque()
    for posts in steps:
        if posts:
            send = slots.take(b"c" * 64)
            if send is None:
                assert len(under_way) > len(slots.sends) // 2, "there is room for as many as may be under way"
                continue
            assert all(send.sg[0] != other.sg[0] for other in under_way)
            under_way.append(send)
        elif under_way:
            ended = under_way.popleft()
            if ended.send_flags:
                slots.sent(ended.wr_id)


def test_there_is_room_for_all_commands_that_may_be_under_way() -> None:
    """Though the last ones that ended have not said so."""
    for entries in range(2, 70):
        slots: Any = Slots(cast("Any", FakeRequests()), cast("Any", None), CmRequest(1, entries, entries))
        for _ in range(5 * entries):
            sent = [slots.take(bytes(64)) for _ in range(entries - 1)]
            assert None not in sent, entries
            for one in sent:
                if one is not None and one.send_flags:
                    slots.sent(one.wr_id)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────


class Refused(Exception):
    def __init__(self, error_code: int) -> None:
        super().__init__("refused")
        self.error_code = error_code


class FakeDevice:
    """Registers memory; as many pieces as `limit`.

    :ivar exports: the content of the dma-bufs among them, of which the kernel has a reference of its own, by their keys
    :param dma_bufs: it takes them
    """

    SystemError = Refused

    def __init__(self, limit: int = 10, error_code: int = 12, *, dma_bufs: bool = True) -> None:
        self.registered: dict[int, tuple[int, int, int]] = {}
        self.exports: dict[int, bytes] = {}
        self.limit = limit
        self.error_code = error_code
        self._dma_bufs = dma_bufs

    def MR(self, domain: object, length: int, access: int, address: int) -> SimpleNamespace:  # noqa: N802
        if len(self.registered) == self.limit:
            raise Refused(self.error_code)
        key = max(self.registered, default=0) + 1
        self.registered[key] = (address, length, access)
        return SimpleNamespace(rkey=key, close=lambda: self.registered.pop(key))

    def DmaBufMR(self, domain: object, length: int, access: int, dmabuf: int) -> SimpleNamespace:  # noqa: N802
        if not self._dma_bufs:
            raise Refused(errno.EOPNOTSUPP)
        made = self.MR(domain, length, access, 0)
        self.exports[made.rkey] = os.pread(dmabuf, length, 0)
        return made


def memory_of(device: FakeDevice) -> Memory:
    return Memory(cast("Library", device), cast("Any", None))


def test_parts_share_the_registration_of_the_whole() -> None:
    device = FakeDevice()
    memory = memory_of(device)
    arena = host_memory(1 << 20, huge_pages=False)
    whole = memory.register(arena)
    part = memory.register(arena[4096:8192])
    assert device.registered == {whole.key: (address_of(arena), 1 << 20, 7)}
    assert (part.key, part.address) == (whole.key, address_of(arena) + 4096)
    whole.close()
    whole.close()
    assert memory.regions == 1, "somebody still uses it"
    part.close()
    assert not device.registered
    assert memory.regions == 0


def test_what_is_only_read_may_not_be_written() -> None:
    device = FakeDevice()
    memory = memory_of(device)
    arena = host_memory(8192, huge_pages=False)
    with_right = memory.register(arena.toreadonly())
    assert device.registered[with_right.key][2] == Access.REMOTE_READ
    other = memory.register(arena)
    assert other.key != with_right.key
    assert memory.register(arena[:4096].toreadonly()).key == with_right.key


def test_memory_that_overlaps_is_not_part_of_it() -> None:
    device = FakeDevice()
    memory = memory_of(device)
    arena = host_memory(16384, huge_pages=False)
    first = memory.register(arena[:8192])
    assert memory.register(arena[4096:12288]).key != first.key


def test_closing_takes_all_rights_back() -> None:
    device = FakeDevice()
    memory = memory_of(device)
    late = memory.register(host_memory(4096, huge_pages=False))
    memory.close()
    assert not device.registered
    late.close()


@pytest.mark.parametrize(
    "error_code, error, words",
    [(12, LockRefused, "RLIMIT_MEMLOCK is .*ulimit -l"), (14, MemoryRefused, "does not take 4096 bytes")],
)
def test_memory_that_the_system_refuses(error_code: int, error: type[Exception], words: str) -> None:
    memory = memory_of(FakeDevice(0, error_code))
    with pytest.raises(error, match=words):
        memory.register(host_memory(4096, huge_pages=False))
    assert memory.regions == 0


# ── memory of a GPU ──────────────────────────────────────────────────────────────────────────────────────────


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def span_of(gpu: FakeCuda, pages: int = 4) -> GpuSpan:
    address = gpu.allocate(pages * PAGE)
    gpu.memory[address][:] = bytes([7]) * (pages * PAGE)
    return GpuSpan(gpu, address, pages * PAGE)


def test_memory_of_a_gpu_is_registered_by_a_dma_buf_that_is_closed_at_once() -> None:
    gpu, device = FakeCuda(), FakeDevice()
    memory, span, before = memory_of(device), span_of(gpu), descriptors()
    whole = memory.register(span)
    assert device.registered == {whole.key: (0, 4 * PAGE, 7)}
    assert device.exports == {whole.key: bytes(gpu.memory[span.address])}
    assert gpu.shared == {span.address}
    assert whole.address == 0, "peers count from the beginning of the dma-buf"
    part = memory.register(GpuSpan(gpu, span.address + PAGE + 512, 512))
    assert (part.key, part.address) == (whole.key, PAGE + 512)
    assert descriptors() == before
    whole.close()
    part.close()
    assert (memory.regions, device.registered) == (0, {})


@pytest.mark.parametrize("exports, dma_bufs", [(False, True), (True, False)])
def test_what_has_no_dma_bufs_is_registered_as_it_is(*, exports: bool, dma_bufs: bool) -> None:
    gpu, device = FakeCuda(exports=exports), FakeDevice(dma_bufs=dma_bufs)
    memory, span, before = memory_of(device), span_of(gpu), descriptors()
    made = memory.register(span)
    assert device.registered == {made.key: (span.address, 4 * PAGE, 7)}
    assert made.address == span.address
    assert descriptors() == before
    made.close()
    assert not device.registered


def test_a_gpu_that_cannot_be_reached_by_either_way_says_why() -> None:
    gpu, device = FakeCuda(exports=False), FakeDevice(0, errno.EFAULT)
    memory, before = memory_of(device), descriptors()
    with pytest.raises(
        MemoryRefused, match=r"neither by a dma-buf \(.*not supported\) nor .*'modprobe nvidia-peermem'"
    ):
        memory.register(span_of(gpu))
    with pytest.raises(MemoryRefused, match=r"neither by a dma-buf \(refused\) nor as they are \(refused\)"):
        memory.register(span_of(FakeCuda()))
    assert (memory.regions, descriptors()) == (0, before)


def test_memory_of_a_gpu_that_is_not_there_or_not_whole_pages() -> None:
    gpu, device = FakeCuda(), FakeDevice()
    memory, span = memory_of(device), span_of(gpu)
    for bad in (
        span._replace(address=span.address + 512),
        span._replace(nbytes=PAGE + 1),
        span._replace(nbytes=0),
    ):
        with pytest.raises(MemoryRefused, match=r"not whole pages of 4096 bytes"):
            memory.register(bad)
    gpu.free(span.address)
    with pytest.raises(MemoryRefused, match=r"cannot be shared .* are allocated at"):
        memory.register(span)
    assert (memory.regions, device.registered) == (0, {})

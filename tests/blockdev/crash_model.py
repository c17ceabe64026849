"""A seeded model of a pool under crashes: random work on devices that fail, cut off at any operation, and reopened.

The model keeps, for every name, the set of versions that may be seen under it. A successful operation leaves one; an
operation that was under way or failed leaves both the old and the new. Eviction, which the pool decides, adds "none".
Whatever is seen must be in the set, byte for byte.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from xxhash import xxh3_64_intdigest

from blockdev.catalog import Trust
from blockdev.creating import CreateOptions, create_pool
from blockdev.errors import BlockError, ChecksumError, DeviceError, Missing, NoSpace, Raced, Unavailable
from blockdev.memory import padded, page_buffer
from blockdev.opening import OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.publication import NewObject, extent_length, slots_of
from blockdev.tally import slot_bytes
from blockdev.tasks import for_each
from blockdev.testing import FaultyDevice, RandomFaults
from blockdev.types import (
    KIB,
    MIB,
    PAGE,
    ROOT,
    Descriptor,
    DirectoryId,
    ExtentRef,
    Kind,
    ObjectId,
    SlotClass,
    SlotNo,
    SlotRef,
    Xxh3,
)

FAULTS = RandomFaults(error_rate=0.003, timeout_rate=0.002, late=30.0, delay=(0.0, 0.01))
DOMAIN = "local:model"
DEVICE_SIZE = 1 * MIB + 5 * 8 * MIB
EXTENT = 2 * MIB
SIZES = (
    0,
    700,
    2_500,
    30 * KIB,
    64 * KIB,
    65 * KIB,
    400 * KIB,
    1_500_001,
    2 * MIB,
    2 * MIB + 1,
    5 * MIB + 4097,
)
NAMES = tuple(b"%s%d" % (prefix, number) for prefix in (b"a", b"b") for number in range(9))

Key = tuple[DirectoryId, bytes]


@dataclass(frozen=True)
class Version:
    """Content made of one repeated tag per extent."""

    size: int
    tags: tuple[int, ...]

    @classmethod
    def tagged(cls, size: int, tags: Iterable[int]) -> Version:
        """With tags that can be read back: a last extent of a few bytes holds the low bytes of its tag."""
        shown = [min(8, extent_length(size, index, EXTENT)) for index in range(-(-size // EXTENT))]
        return cls(size, tuple(tag % 256**length for tag, length in zip(tags, shown, strict=True)))

    @property
    def extents(self) -> int:
        return -(-self.size // EXTENT)

    def part(self, index: int) -> bytes:
        length = extent_length(self.size, index, EXTENT)
        return (self.tags[index].to_bytes(8, "little") * (length // 8 + 1))[:length]


Seen = Version | None


@dataclass
class Clock:
    """Wall time in ns that the model moves; sometimes backwards, as clocks do."""

    now: int = 10**18

    def __call__(self) -> int:
        return self.now


@dataclass
class Failure(AssertionError):
    """What the model does not allow."""

    what: str

    def __str__(self) -> str:
        return self.what


def lose_after(device: FaultyDevice, operations: int, also: Callable[[], None] = lambda: None) -> None:
    """Lose a device when it has had so many operations; `also` is called at each."""

    def count(*_: object) -> None:
        also()
        if device.operations.total() >= operations:
            device.lose()

    device.on_operation = count


@dataclass
class CrashModel:
    """One run.

    :param flush: `durability: flush`
    :param folder: for the catalogue
    """

    seed: int
    flush: bool
    folder: Path
    faults: bool
    rng: Random = field(init=False)
    devices: list[FaultyDevice] = field(init=False)
    absent: dict[int, FaultyDevice] = field(default_factory=dict)
    may: dict[Key, set[Seen]] = field(default_factory=dict)
    busy: set[Key] = field(default_factory=set)
    history: dict[Key, set[Seen]] = field(default_factory=dict)
    """Everything that a name ever stood for: without a device, and with it back again, older versions may show."""
    evictions: Counter[Key] = field(default_factory=Counter)
    boot: int = 0
    clock: Clock = field(default_factory=Clock)
    tag: int = 0
    pool: Pool = field(init=False)
    crashed: bool = False
    unsure: bool = False
    """Devices failed while the pool was opened: what could not be read is out of reach this time."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    # ── a run ────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, cycles: int, operations: int) -> None:
        self.devices = [FaultyDevice(DEVICE_SIZE, self.rng, name=f"d{n}") for n in range(2)]
        await create_pool(self.devices, CreateOptions("model", DOMAIN, SlotClass.MIB2, 8 * MIB))
        self.devices = [device.reopen() for device in self.devices]
        for _ in range(cycles):
            await self.cycle(operations)
        self._attach_all()
        await self._check_after_rebuild()

    async def cycle(self, operations: int) -> None:
        """Open, check, work, and come to an end: a crash, or a clean close."""
        self.crashed = False
        end = self.rng.choice(("kill", "kill", "power", "close"))
        if end == "power" and not self.flush:
            end = "kill"
        crash_at = self.rng.randrange(5, 12 * operations) if end != "close" else None
        folder = self.folder
        torn = self.rng.choice((512, 4096))
        heirs: list[FaultyDevice] = []
        snapshot = self.folder.with_name(f"{self.folder.name}-after")

        def crash() -> None:
            self.crashed = True
            heirs.extend(
                device.crash("power" if end == "power" else "kill", torn=torn) for device in self.devices
            )
            shutil.copytree(folder, snapshot, dirs_exist_ok=True)

        await self._open_among_faults()
        opened = False
        with suppress(*([BlockError] if crash_at is not None else [])):
            async with open_pool(self.devices, folder, self._options()) as result:
                opened = True
                self._adopt(result.pool)
                self.unsure = bool(result.recovered.unread_regions)
                await self.check()
                if self.faults:
                    for device in self.devices:
                        device.random_faults = FAULTS
                await self._work(operations, crash_at, crash)
                if not self.crashed:
                    await self._check_idle()
        assert opened
        if crash_at is not None and not self.crashed:
            crash()
        self._next_boot(end, heirs, snapshot)

    async def _open_among_faults(self) -> None:
        """Sometimes devices fail while the pool is opened: that may fail, but harms nothing."""
        if not self.faults or self.rng.random() < 0.7:
            return
        for device in self.devices:
            device.random_faults = RandomFaults(error_rate=0.02, timeout_rate=0.01)
        if self.rng.random() < 0.3:
            lose_after(self.rng.choice(self.devices), self.rng.randrange(60))
        with suppress(BlockError):
            async with open_pool(self.devices, self.folder, self._options()) as result:
                self._adopt(result.pool)
                self.unsure = bool(result.recovered.unread_regions) or not self._is_complete()
                for device in self.devices:
                    device.random_faults = RandomFaults()
                    device.on_operation = None
                await self.check()
                with suppress(NoSpace):
                    await self._worker(3)
                await self._check_idle()
        self._doubt()
        self.busy.clear()
        self.devices = [device.reopen() for device in self.devices]

    def _next_boot(self, end: str, heirs: list[FaultyDevice], snapshot: Path) -> None:
        if heirs:
            self.devices = heirs
            shutil.rmtree(self.folder, ignore_errors=True)
            if snapshot.exists():
                snapshot.rename(self.folder)
        else:
            self.devices = [device.reopen() for device in self.devices]
        if end == "power":
            self.boot += 1
        if self.rng.random() < 0.15:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.clock.now += self.rng.randrange(-(10**9), 10**10)
        self._attach_all()
        if self.rng.random() < 0.15 and not self.absent:
            number = self.rng.randrange(len(self.devices))
            self.absent[number] = self.devices.pop(number)
        self.rng.shuffle(self.devices)
        self.busy.clear()

    def _attach_all(self) -> None:
        self._doubt()
        self.devices += self.absent.values()
        self.absent.clear()

    def _doubt(self) -> None:
        """While something was out of reach, older versions may have been made to count again."""
        if self.absent or self.unsure:
            for key in self.may:
                self.may[key] |= self.history[key]

    def _options(self) -> OpenOptions:
        return OpenOptions(
            DOMAIN,
            flush=self.flush,
            boot_id=f"boot-{self.boot}",
            wall_ns=self.clock,
            entropy=self.rng.randbytes,
        )

    def _adopt(self, pool: Pool) -> None:
        self.pool = pool
        evict = pool._room.evict

        async def spy(object_id: ObjectId, *, ahead: bool = False) -> bool:
            record = pool.catalog.by_id(object_id)
            if record is not None:
                key = (record.directory, record.name)
                self._known(key).add(None)
                self.evictions[key] += 1
            return await evict(object_id, ahead=ahead)

        pool._room.evict = spy

    # ── work ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, operations: int, crash_at: int | None, crash: Callable[[], None]) -> None:
        remaining = crash_at

        def count(*_: object) -> None:
            nonlocal remaining
            if remaining is not None and not self.crashed:
                remaining -= 1
                if remaining < 0:
                    crash()

        for device in self.devices:
            device.on_operation = count
        if self.faults and self.rng.random() < 0.3:
            lose_after(self.rng.choice(self.devices), self.rng.randrange(10 * operations), count)
        await for_each(range(3), lambda _: self._worker(operations // 3), at_once=3)

    async def _worker(self, operations: int) -> None:
        work: list[Callable[[], Awaitable[None]]] = [
            self.put, self.put, self.put, self.get, self.rename, self.remove, self.update, self.patch, self.directory,
        ]  # fmt: skip
        for _ in range(operations):
            if self.crashed:
                return
            self.clock.now += self.rng.randrange(1000)
            try:
                await self.rng.choice(work)()
            except (DeviceError, Unavailable):
                if not self.crashed and not self.faults:
                    raise
            except (NoSpace, Missing):
                pass  # slots that failed, or pinned ones; or evicted meanwhile

    def _take(self) -> Key | None:
        key = (ROOT, self.rng.choice(NAMES))
        if key in self.busy:
            return None
        self.busy.add(key)
        return key

    def _version(self) -> Version:
        size = self.rng.choice(SIZES)
        self.tag += 1
        return Version.tagged(size, (self.tag * 100 + n for n in range(-(-size // EXTENT))))

    async def put(self) -> None:
        key = self._take()
        if key is None:
            return
        version = self._version()
        old = self._known(key)
        self.may[key] = {*old, version}
        evictions = self.evictions[key]
        await self._publish(key, version, None, ())
        self._settled(key, {version}, evictions)
        self.busy.discard(key)

    async def patch(self) -> None:
        """A new version that keeps some of the old one's extents."""
        key = self._take()
        record = self.pool.lookup(*key) if key else None
        if key is None or record is None or record.kind is not Kind.HEAD or record.size < EXTENT:
            self.busy.discard(key) if key else None
            return
        self.pool.pin(record)
        try:
            await self._patch(key, record)
        finally:
            self.pool.unpin(record)
        self.busy.discard(key)

    async def _patch(self, key: Key, record: Descriptor) -> None:
        old = self._version_of(record, await self._read(record))
        self.tag += 1
        changed = self.rng.randrange(old.extents)
        tags = tuple(self.tag * 100 + n if n == changed else tag for n, tag in enumerate(old.tags))
        version = Version.tagged(old.size, tags)
        keep = frozenset(n for n in range(old.extents) if n != changed)
        self.may[key] = {*self._known(key), version}
        evictions = self.evictions[key]
        await self._publish(key, version, record, keep)
        self._settled(key, {version}, evictions)

    async def _publish(
        self, key: Key, version: Version, base: Descriptor | None, keep: frozenset[int] | tuple[()]
    ) -> None:
        pool = self.pool
        attributes = (*key, 0o100644, 0, 0, self.clock(), version.size)
        if version.size <= pool.inline_limit(key[1]):
            inline = version.part(0) if version.size else b""
            await pool.publish(NewObject(*attributes, inline=inline))
            return
        old = await pool.extents(base) if base is not None else ()
        extents: list[ExtentRef] = []
        taken = []
        writes: list[tuple[SlotRef, memoryview, int]] = []
        try:
            for index in range(version.extents):
                if index in keep:
                    extents.append(old[index])
                    continue
                part = version.part(index)
                ref = await pool.reserve(len(part))
                taken.append(ref)
                buffer = page_buffer(padded(len(part)))
                buffer[: len(part)] = part
                writes += self._parts(ref, buffer)
                extents.append(ExtentRef(*ref, Xxh3(xxh3_64_intdigest(part))))
            early = self.rng.randint(0, len(writes))
            await for_each(writes[:early], self._write, at_once=2)
        except BlockError:
            for ref in taken:
                pool.give_back(ref)
            raise
        late = writes[early:]

        async def arrived() -> None:
            rest, late[:] = late[:], []
            await for_each(rest, self._write, at_once=2)

        await pool.publish(NewObject(*attributes, extents=tuple(extents), base=base), arrived)

    def _parts(self, ref: SlotRef, buffer: memoryview) -> list[tuple[SlotRef, memoryview, int]]:
        """A payload cut into one to three parts, which come in any order."""
        pages = buffer.nbytes // PAGE
        cuts = sorted(self.rng.sample(range(1, pages), min(pages - 1, self.rng.randrange(3))))
        edges = [0, *(cut * PAGE for cut in cuts), buffer.nbytes]
        parts = [(ref, buffer[start:stop], start) for start, stop in pairwise(edges)]
        self.rng.shuffle(parts)
        return parts

    async def _write(self, part: tuple[SlotRef, memoryview, int]) -> None:
        await self.pool.write(*part)

    async def get(self) -> None:
        key = self._take()
        if key is None:
            return
        record = self.pool.lookup(*key)
        if record is None:
            self._allow(key, None)
        elif record.kind is Kind.HEAD:
            self.pool.pin(record)
            try:
                self.pool.touch(record)
                self._allow(key, self._version_of(record, await self._read(record)))
            finally:
                self.pool.unpin(record)
        self.busy.discard(key)

    async def rename(self) -> None:
        source, target = self._take(), self._take()
        record = self.pool.lookup(*source) if source and target else None
        if source is None or target is None or record is None:
            self.busy -= {key for key in (source, target) if key}
            return
        self._known(target)
        moving = self._known(source) - {None}
        self.may[source] = {*self._known(source), None}
        self.may[target] = {*self._known(target), *moving}
        evictions = self.evictions[target]
        await self.pool.rename(record, *target)
        self._settled(target, moving, evictions)
        self.may[source] = {None}
        self.busy -= {source, target}

    async def remove(self) -> None:
        key = self._take()
        record = self.pool.lookup(*key) if key else None
        if key is None or record is None:
            self.busy.discard(key) if key else None
            return
        self.may[key] = {*self._known(key), None}
        await self.pool.remove(record)
        self.may[key] = {None}
        self.busy.discard(key)

    async def update(self) -> None:
        key = self._take()
        record = self.pool.lookup(*key) if key else None
        if key is not None and record is not None:
            changed = await self.pool.update(record, mode=0o100600, mtime_ns=self.clock())
            assert changed.mode == 0o100600
        self.busy.discard(key) if key else None

    async def directory(self) -> None:
        """Directories come and go; what is in them is the same as what is in the root."""
        name = b"dir%d" % self.rng.randrange(3)
        key = (ROOT, name)
        if key in self.busy:
            return
        self.busy.add(key)
        record = self.pool.lookup(*key)
        if record is None:
            with suppress(BlockError if self.crashed else NoSpace):
                await self.pool.make_directory(*key, 0o700, 0, 0)
        elif self.rng.random() < 0.5:
            await self.pool.remove(record)
        self.busy.discard(key)

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────

    def _known(self, key: Key) -> set[Seen]:
        seen = self.may.setdefault(key, {None})
        self.history.setdefault(key, set()).update(seen)
        return seen

    def _settled(self, key: Key, versions: set[Seen], evictions: int) -> None:
        """An operation succeeded; `evictions` is how often the name was to be evicted before it began."""
        self.may[key] = versions | ({None} if self.evictions[key] != evictions else set())
        self._known(key)

    def _allow(self, key: Key, seen: Seen) -> None:
        allowed = self._known(key) | (set() if self._is_complete() else {None})
        if self.absent or self.unsure:
            allowed |= {None, *self.history[key]}
        if seen not in allowed:
            raise Failure(f"seed {self.seed}: {key[1]!r} is {seen}, allowed {self._known(key)}")

    def _is_complete(self) -> bool:
        """Whether no device was lost since the pool was opened."""
        return not any(attached.lost for attached in self.pool.media.devices.values())

    def _version_of(self, record: Descriptor, content: list[bytes]) -> Version:
        tags = []
        for part in content:
            tag = int.from_bytes(part[:8].ljust(8, b"\0"), "little")
            if part != (part[:8] * (len(part) // 8 + 1))[: len(part)]:
                raise Failure(f"seed {self.seed}: {record.name!r} holds a mix of bytes")
            tags.append(tag)
        return Version(record.size, tuple(tags))

    async def _read(self, record: Descriptor) -> list[bytes]:
        parts = []
        for index in range(-(-record.size // EXTENT)):
            buffer = page_buffer(EXTENT)
            length = await self.pool.read_extent(record, index, buffer)
            parts.append(bytes(buffer[:length]))
        return parts

    async def check(self) -> None:
        """Every name shows what it may show, and the space agrees with the catalogue."""
        for key in [(ROOT, name) for name in NAMES]:
            record = self.pool.lookup(*key)
            seen: Seen = None
            if record is not None:
                try:
                    seen = self._version_of(record, await self._read(record))
                except (ChecksumError, Raced) as error:
                    raise Failure(f"seed {self.seed}: {error}") from error
            self._allow(key, seen)
            if not self.absent and not self.faults:
                self.may[key] = {seen}
        await self._check_space()

    async def _check_idle(self) -> None:
        """Nothing is held by nobody when all work is done."""
        pool = self.pool
        spare = pool._versions.debts._tombstones._spare  # kept while something is owed
        reserved = pool._space.totals().reserved
        if reserved and not (spare is not None and reserved == slot_bytes(SlotClass.INLINE)):
            raise Failure(f"seed {self.seed}: {reserved} bytes reserved by nobody")
        if not (pool._locks.are_free and pool._tree.is_idle):
            raise Failure(f"seed {self.seed}: locks held by nobody")
        if pool._versions.pins.bytes:
            raise Failure(f"seed {self.seed}: pinned by nobody")
        if not self.faults:
            await self._check_space()

    async def _check_space(self) -> None:
        """No slot leaked: what lives in the space is what the catalogue's objects hold."""
        pool = self.pool
        held = set()
        for record in pool.catalog.scan():
            if pool.reachable(record):
                held.update(slots_of(record, await pool.extents(record)))
        if self.absent or self.unsure or pool._room.counters.failed:
            return  # bodies whose head is out of reach stay, and slots that could not be freed
        live = {
            region.ref(slot)
            for region in pool._space.regions()
            for slot in map(SlotNo, range(region.slots))
            if region.owner(slot) is not None
        }
        for ref in live - held:
            twin = await pool.media.read_descriptor(ref.address)
            if twin is not None and twin.kind is Kind.DIRECTORY and self.history:
                held.add(ref)  # made twice, while one of the two was away: both stay, and are one
        if live != held:
            raise Failure(
                f"seed {self.seed}: leaked {sorted(live - held)[:4]}, missing {sorted(held - live)[:4]}"
            )
        reserved = pool._space.totals().reserved
        if reserved:
            raise Failure(f"seed {self.seed}: {reserved} bytes reserved by nobody")

    async def _check_after_rebuild(self) -> None:
        """The catalogue and a scan of everything come to the same."""
        self.unsure = False
        async with open_pool(self.devices, self.folder, self._options()) as result:
            self._adopt(result.pool)
            await self.check()
            before = self._listing()
        self.devices = [device.reopen() for device in self.devices]
        shutil.rmtree(self.folder)
        async with open_pool(self.devices, self.folder, self._options()) as result:
            assert result.recovered.trust is Trust.STALE
            self._adopt(result.pool)
            await self.check()
            after = self._listing()
        if before != after:
            raise Failure(f"seed {self.seed}: {before ^ after}")

    def _listing(self) -> set[Descriptor]:
        return {record for record in self.pool.catalog.scan() if record.kind is Kind.HEAD}

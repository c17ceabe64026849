"""The formats on media are what they were: encoding known records gives known bytes, and back."""

# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from blockdev import changelog, layout
from blockdev.changelog import Change, ChangeKind, LogPage, PinPage
from blockdev.types import (
    HOLE,
    MIB,
    NO_ID,
    ROOT,
    Descriptor,
    DeviceEntry,
    ExtentRef,
    Kind,
    RegionHeader,
    RegionState,
    SlotAddress,
    SlotClass,
    SlotRef,
    Superblock,
)

GOLDEN = Path(__file__).parent.parent / "golden"
POOL = UUID("6b766673-0000-4000-8000-00000000c0de")
DEVICE = UUID("6b766673-0000-4000-8000-0000000000d1")
MEMBER = UUID("6b766673-0000-4000-8000-0000000000e1")

SUPERBLOCK = Superblock(
    pool=POOL,
    device=DEVICE,
    device_no=1,
    domain="local:6b766673-0000-4000-8000-0000000000f1",
    name="wärme",
    region_size=256 * MIB,
    data_offset=MIB,
    extent_class=SlotClass.MIB4,
    devices=(
        DeviceEntry(UUID("6b766673-0000-4000-8000-0000000000d0"), 1 << 40),
        DeviceEntry(DEVICE, 3 << 40),
    ),
    sequence=0x1122334455667788,
)
REGION_HEADER = RegionHeader(
    pool=POOL,
    device_no=1,
    region=0x01020304,
    state=RegionState.ACTIVE,
    writer=MEMBER,
    epoch=0x0A0B0C0D,
    slot_class=SlotClass.MIB4,
    unproven=True,
    sequence=0x1122334455667788,
)
HEAD = Descriptor(
    kind=Kind.HEAD,
    address=SlotAddress(1, 0x01020304, 0x05060708),
    epoch=0x0A0B0C0D,
    generation=0x0A0B0C0D_00000002,
    sequence=7,
    stamp=1_700_000_000_123_456_789,
    object_id=bytes(range(16)),
    directory=ROOT,
    name=b"0123abcd.bin",
    mode=0o100640,
    uid=1000,
    gid=1001,
    mtime_ns=-1,
    ctime_ns=1_700_000_000_000_000_001,
    btime_ns=1_700_000_000_000_000_002,
    size=9 * MIB,
    stored_size=5 * MIB,
    extents=(
        ExtentRef(1, 0x01020304, 0x05060708, 0x0A0B0C0D_00000002, 0xFEDCBA9876543210),
        HOLE,
        ExtentRef(0, 9, 8, 7, 6),
    ),
    supersedes=(SlotRef(0, 1, 2, 3),),
    predecessor=bytes(range(0x80, 0x90)),
    xattrs=((b"user.a", b"1"), (b"user.model", b"llama")),
)
ALIAS = Descriptor(
    kind=Kind.ALIAS,
    address=SlotAddress(0, 1, 2),
    epoch=3,
    generation=3 << 32,
    sequence=4,
    stamp=5,
    object_id=bytes(range(16)),
    directory=bytes(range(16, 32)),
    name=b"renamed",
    indexed=True,
    size=1 << 40,
    stored_size=1 << 40,
    extents=(ExtentRef(1, 2, 3, 4, 5),),
    head=SlotRef(1, 0x01020304, 0x05060708, 0x0A0B0C0D_00000002),
)
INLINE = Descriptor(
    kind=Kind.HEAD,
    address=SlotAddress(0, 0, 0),
    epoch=1,
    generation=1 << 32,
    sequence=2,
    object_id=bytes(range(16)),
    directory=ROOT,
    name=b"config.json",
    mode=0o100644,
    size=13,
    stored_size=13,
    inline=b'{"layers": 1}',
)
BODY = Descriptor(
    kind=Kind.BODY,
    address=SlotAddress(1, 2, 3),
    epoch=4,
    generation=4 << 32,
    sequence=5,
    object_id=bytes(range(16)),
    size=4 * MIB,
    stored_size=4 * MIB,
    index=2,
    head=SlotRef(1, 2, 4, 4 << 32),
)
FREE = Descriptor(Kind.FREE, SlotAddress(1, 2, 3), epoch=4, generation=(4 << 32) + 1, sequence=6)
ROOT_DIRECTORY = Descriptor(
    Kind.DIRECTORY,
    SlotAddress(0, 0, 0),
    1,
    1 << 32,
    4,
    stamp=9,
    object_id=ROOT,
    directory=NO_ID,
    mode=0o40755,
)
LOG_PAGE = LogPage(
    member=MEMBER,
    epoch=3,
    sequence=0x1122334455667788,
    written_ns=1_700_000_000_123_456_789,
    changes=tuple(
        Change(kind, SlotRef(1, 2, 3, 4), 5, 6, bytes(range(kind, kind + 16))) for kind in sorted(ChangeKind)
    ),
)
PIN_PAGE = PinPage(member=MEMBER, epoch=3, part=2, sequence=9, objects=(bytes(range(16)), ROOT))


@dataclass(frozen=True)
class Format:
    """One record and how its bytes are made and read."""

    name: str
    version: int
    page: bytes
    decode: Callable[[bytes], object]
    record: object

    @property
    def file(self) -> Path:
        return GOLDEN / f"{self.name}-v{self.version}.hex"


def _descriptor(name: str, record: Descriptor) -> Format:
    return Format(
        f"descriptor-{name}",
        layout.DESCRIPTOR_VERSION,
        layout.encode_descriptor(POOL, record),
        lambda page: layout.decode_descriptor(POOL, page),
        record,
    )


FORMATS = [
    Format(
        "superblock",
        layout.SUPERBLOCK_VERSION,
        layout.encode_superblock(SUPERBLOCK),
        layout.decode_superblock,
        SUPERBLOCK,
    ),
    Format(
        "region-header",
        layout.REGION_HEADER_VERSION,
        layout.encode_region_header(REGION_HEADER),
        lambda page: layout.decode_region_header(POOL, page),
        REGION_HEADER,
    ),
    _descriptor("head", HEAD),
    _descriptor("alias", ALIAS),
    _descriptor("inline", INLINE),
    _descriptor("body", BODY),
    _descriptor("free", FREE),
    _descriptor("root", ROOT_DIRECTORY),
    Format(
        "log-page",
        changelog.LOG_VERSION,
        changelog.encode_log_page(POOL, LOG_PAGE),
        lambda page: changelog.decode_log_page(POOL, page),
        LOG_PAGE,
    ),
    Format(
        "pin-page",
        changelog.PINS_VERSION,
        changelog.encode_pin_page(POOL, PIN_PAGE),
        lambda page: changelog.decode_pin_page(POOL, page),
        PIN_PAGE,
    ),
]


def dump(page: bytes) -> str:
    """The page as text, without lines of zeros."""
    lines = ((at, page[at : at + 16]) for at in range(0, len(page), 16))
    return "".join(f"{at:04x}: {line.hex(' ')}\n" for at, line in lines if any(line))


def load(text: str) -> bytes:
    """The inverse of `dump`."""
    page = bytearray(4096)
    for line in text.splitlines():
        at, _, data = line.partition(":")
        page[int(at, 16) : int(at, 16) + 16] = bytes.fromhex(data)
    return bytes(page)


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case.name)
def test_bytes_have_not_changed(case):
    assert case.file.exists(), f"{case.name} has a new version: see tests/golden/README.md"
    assert dump(case.page) == case.file.read_text(), (
        f"{case.name}: the bytes changed, version {case.version} did not. See tests/golden/README.md"
    )


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case.name)
def test_known_bytes_can_be_read(case):
    assert case.decode(load(case.file.read_text())) == case.record


def test_every_file_is_of_a_format():
    # A file of an older version stays only as long as a test reads it.
    assert sorted(GOLDEN.glob("*.hex")) == sorted(case.file for case in FORMATS)


def test_the_documented_example_is_true():
    text = (GOLDEN.parent.parent / "docs" / "media-format.md").read_text()
    golden = next(case for case in FORMATS if case.record is HEAD).file.read_text()
    assert f"```\n{golden}```\n" in text


def test_every_kind_of_slot_class_and_state_keeps_its_number():
    assert {kind.name: kind.value for kind in Kind} == {
        "FREE": 0, "HEAD": 1, "BODY": 2, "INDEX": 3, "DIRECTORY": 4, "SYMLINK": 5, "TOMBSTONE": 6, "ALIAS": 7,
    }  # fmt: skip
    assert [c.name for c in SlotClass] == ["INLINE", "KIB64", "KIB512", "MIB2", "MIB4", "MIB8", "MIB16"]
    assert [c.payload_size >> 10 for c in SlotClass] == [0, 64, 512, 2048, 4096, 8192, 16384]
    assert {s.name: s.value for s in RegionState} == {"UNUSED": 0, "ACTIVE": 1, "RETIRED": 2}


@pytest.mark.parametrize(
    "slot_class, slots, last_descriptor, first_payload, last_payload",
    [
        ("INLINE", 32767, 268427264, None, None),
        ("KIB64", 3640, 29818880, 29884416, 268369920),
        ("KIB512", 504, 4128768, 4194304, 267911168),
        ("MIB2", 127, 1040384, 2097152, 266338304),
        ("MIB4", 63, 516096, 4194304, 264241152),
        ("MIB8", 31, 253952, 8388608, 260046848),
        ("MIB16", 15, 122880, 16777216, 251658240),
    ],
)
def test_geometry_has_not_changed(slot_class, slots, last_descriptor, first_payload, last_payload):
    geometry = layout.RegionGeometry(256 * MIB, SlotClass[slot_class])
    assert geometry.slots == slots
    assert geometry.descriptor_offset(slots - 1) == last_descriptor
    if first_payload is not None:
        assert (geometry.payload_offset(0), geometry.payload_offset(slots - 1)) == (
            first_payload,
            last_payload,
        )


if __name__ == "__main__":
    for case in FORMATS:
        if not case.file.exists():
            case.file.write_text(dump(case.page))

"""The kernel's messages, byte by byte."""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace

import pytest

from kvfs.fuse import wire
from kvfs.fuse.wire import Handshake, InitFlag, Opcode

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the golden bytes are little-endian")


def test_a_write_request():
    message = bytes.fromhex(
        "50100000 10000000 0200000000000000 0300000000000000 e8030000 e9030000 2a000000 0000 0000"
        "0700000000000000 0000100000000000 00100000 01000000 efbeadde00000000 01800000 00000000"
    )
    assert len(message) == wire.DATA_HEADER == 80
    assert wire.parse(message) == (0x1050, Opcode.WRITE, 2, 3, 7, 1 << 20, 4096)


def test_answers():
    assert wire.data_answer(0x1234, 4096) == bytes.fromhex("10100000 00000000 3412000000000000")
    assert wire.write_answer(2, 4096) == bytes.fromhex("18000000 00000000 0200000000000000 00100000 00000000")
    assert wire.error_answer(2, 28) == bytes.fromhex("10000000 e4ffffff 0200000000000000")
    assert wire.unique_of(wire.error_answer(0x1234, 5)) == 0x1234


def test_attributes():
    attributes = SimpleNamespace(
        st_ino=5, st_size=6, st_blocks=7, st_atime_ns=8_000_000_009, st_mtime_ns=10_000_000_011,
        st_ctime_ns=12_000_000_013, st_mode=0o40755, st_nlink=2, st_uid=1000, st_gid=1001, st_rdev=0, st_blksize=4096,
    )  # fmt: skip
    assert wire.attributes_answer(2, 1.5, attributes) == bytes.fromhex(
        "78000000 00000000 0200000000000000 0100000000000000 0065cd1d 00000000"
        "0500000000000000 0600000000000000 0700000000000000 0800000000000000 0a00000000000000 0c00000000000000"
        "09000000 0b000000 0d000000 ed410000 02000000 e8030000 e9030000 00000000 00100000 00000000"
    )


def test_the_name_of_an_attribute():
    head = wire.IN_HEADER.pack(67, Opcode.GETXATTR, 4, 1, 0, 0, 0, 0, 0)
    message = head + wire.XATTR_ARGUMENTS.pack(0) + b"security.capability\0rest"
    assert wire.xattr_name(message) == b"security.capability"


def test_forgetting_attributes():
    assert wire.invalidate_attributes(5) == bytes.fromhex(
        "28000000 02000000 0000000000000000 0500000000000000 ffffffffffffffff 0000000000000000"
    )


def test_only_listings_are_shortened():
    head = wire.IN_HEADER.pack(80, Opcode.READDIRPLUS, 4, 1, 0, 0, 0, 0, 0)
    long = head + wire.READ_ARGUMENTS.pack(9, 17, 1 << 20, 0, 0, 0, 0)
    short = head + wire.READ_ARGUMENTS.pack(9, 17, 4096, 0, 0, 0, 0)
    assert wire.limited_listing(long) == head + wire.READ_ARGUMENTS.pack(9, 17, 32768, 0, 0, 0, 0)
    assert wire.limited_listing(short) == short


@pytest.mark.parametrize("opcode, answered", [(1, True), (2, False), (18, True), (26, True), (42, False)])
def test_which_requests_are_answered(opcode, answered):
    assert wire.is_answered(opcode) == answered


def init(minor: int = 45, flags: int = 0x73FFFFFB, major: int = 7) -> bytes:
    body = struct.pack("=IIIII44x", major, minor, 131072, flags, 0x7F)
    return wire.IN_HEADER.pack(40 + len(body), Opcode.INIT, 2, 0, 0, 0, 0, 0, 0) + body


class TestHandshake:
    def test_libfuse_sees_an_older_kernel(self):
        narrowed = Handshake.of(init()).narrowed()
        assert narrowed == bytes.fromhex(
            "38000000 1a000000 0200000000000000 0000000000000000 00000000 00000000 00000000 0000 0000"
            "07000000 0d000000 00000200 fbffff33"
        )

    def test_the_kernel_gets_what_both_can_do(self):
        answer = bytes.fromhex(
            "28000000 00000000 0200000000000000 07000000 25000000 00000200 21a00000 0c00 0900 00100200"
        )
        widened = Handshake.of(init()).widened(answer, max_pages=1024, page=4096, max_background=128)
        assert widened == bytes.fromhex(
            "50000000 00000000 0200000000000000 07000000 25000000 00000200 21a04010 8000 6000 00004000"
            "01000000 0004 0000 00000000 00000000 0000" + "00" * 22
        )
        assert len(widened) == 16 + 64

    def test_an_old_kernel_is_asked_for_no_more_than_it_has(self):
        flags = 0x73FFFFFB & ~(InitFlag.MAX_PAGES | InitFlag.HANDLE_KILLPRIV_V2)
        answer = wire.OUT_HEADER.pack(40, 0, 2) + struct.pack("=IIIIHHI", 7, 37, 0, 0x21, 0, 0, 131072)
        widened = Handshake.of(init(flags=flags)).widened(
            answer, max_pages=1024, page=4096, max_background=128
        )
        fields = wire.INIT_OUT.unpack_from(widened, 16)
        assert fields[3] == 0x21
        assert fields[6] == 32 * 4096

    def test_a_refusal_is_passed_on(self):
        refusal = wire.error_answer(2, 71)
        assert Handshake.of(init()).widened(refusal, max_pages=1, page=4096, max_background=1) == refusal

    def test_another_protocol(self):
        with pytest.raises(ValueError, match="version 8"):
            Handshake.of(init(major=8))

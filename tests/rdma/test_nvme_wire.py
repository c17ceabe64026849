"""Every structure has the bytes that the specifications say, and comes back from them as it was."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma import nvme_wire as wire
from rdma.errors import CommandFailed, WireError
from rdma.nvme_identify import (
    ENABLE,
    IDENTIFY_SIZE,
    SHUT_DOWN,
    Capabilities,
    Controller,
    ControllerState,
    Namespace,
    unpack_active,
)
from rdma.nvme_status import AUTHENTICATION_REQUIRED, SUCCESS, Status, StatusType

DATA = wire.Keyed(0x7F0011223344, 0x100000, 0xDEADBEEF)
SGL = "44332211007f0000000010efbeadde40"
NONE = "00" * 15 + "40"
ZEROS = "00" * 16


def command(first: str, sgl: str, words: str) -> str:
    """Hexadecimal digits of a command: its first 8 bytes, 16 zeros, its descriptor, and command dwords."""
    return first + ZEROS + sgl + words.ljust(48, "0")


GOLDEN = {
    "connect": (
        wire.connect(1, 32, wire.Keyed(0x1000, 1024, 7), keep_alive_ms=0),
        command("7f40230101000000", "00100000000000000004000700000040", "000001001f000000"),
    ),
    "connect with a capsule": (
        wire.connect(0, 32, wire.InCapsule(0, 1024), keep_alive_ms=15000),
        command("7f40230101000000", "00000000000000000004000000000001", "000000001f000000983a0000"),
    ),
    "property get": (
        wire.property_get(wire.Property.CSTS),
        command("7f40230104000000", NONE, "000000001c000000"),
    ),
    "property get, wide": (
        wire.property_get(wire.Property.CAP),
        command("7f40230104000000", NONE, "0100000000000000"),
    ),
    "property set": (
        wire.property_set(wire.Property.CC, ENABLE),
        command("7f40230100000000", NONE, "000000001400000001004600"),
    ),
    "disconnect": (wire.disconnect(), command("7f40230108000000", NONE, "")),
    "identify controller": (
        wire.identify(wire.Cns.CONTROLLER, DATA),
        command("0640230100000000", SGL, "01"),
    ),
    "identify namespace": (
        wire.identify(wire.Cns.NAMESPACE, DATA, nsid=3),
        command("0640230103000000", SGL, ""),
    ),
    "set queues": (wire.set_queues(4), command("0940230100000000", NONE, "0700000003000300")),
    "keep alive": (wire.keep_alive(), command("1840230100000000", NONE, "")),
    "abort": (wire.abort(2, 0x1234), command("0840230100000000", NONE, "02003412")),
    "read": (
        wire.read(1, 0x1_0000_0002, 256, DATA),
        command("0240230101000000", SGL, "0200000001000000ff000000"),
    ),
    "write": (wire.write(1, 5, 1, DATA), command("0140230101000000", SGL, "05")),
    "read, key given back": (
        wire.read(1, 0, 1, wire.Keyed(0x7F0011223344, 0x100000, 0xDEADBEEF, invalidate=True)),
        command("0240230101000000", SGL[:-2] + "4f", ""),
    ),
    "write zeroes": (
        wire.write_zeroes(1, 8, 16, deallocate=True),
        command("0840230101000000", NONE, "08000000000000000f000002"),
    ),
    "flush": (wire.flush(1), command("0040230101000000", NONE, "")),
    "deallocate": (
        wire.deallocate(1, 2, DATA),
        command("0940230101000000", SGL, "0100000004000000"),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_commands_have_the_bytes_of_the_specification(name: str) -> None:
    made, golden = GOLDEN[name]
    assert made.pack(0x0123).hex() == golden
    assert wire.unpack_command(bytes.fromhex(golden)) == (0x0123, made)


U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
SGLS = st.builds(wire.Keyed, U64, st.integers(0, wire.KEYED_MAX), U32, st.booleans()) | st.builds(
    wire.InCapsule, U64, U32
)
COMMANDS = st.builds(wire.Command, st.integers(0, 255), U32, SGLS, st.tuples(*[U32] * 6))
STATUSES = st.builds(Status, st.integers(0, 7), st.integers(0, 255), st.booleans(), st.booleans())
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=wire.NQN_MAX)


@given(U16, COMMANDS)
def test_any_command_comes_back(command_id: int, made: wire.Command) -> None:
    packed = made.pack(command_id)
    assert len(packed) == wire.COMMAND_SIZE
    assert wire.unpack_command(packed) == (command_id, made)


@given(st.builds(wire.Completion, U16, U64, U16, U16, STATUSES))
def test_any_completion_comes_back(completion: wire.Completion) -> None:
    assert wire.unpack_completion(completion.pack()) == completion


@given(st.builds(wire.ConnectData, st.binary(min_size=16, max_size=16), U16, NAMES, NAMES))
def test_any_connect_data_come_back(data: wire.ConnectData) -> None:
    packed = data.pack()
    assert len(packed) == wire.CONNECT_DATA_SIZE
    assert wire.unpack_connect_data(packed) == data


@given(st.builds(wire.CmRequest, U16, U16, st.integers(1, 1 << 16), U16))
def test_any_request_comes_back(request: wire.CmRequest) -> None:
    assert wire.CmRequest.unpack(request.pack()) == request


@given(st.lists(st.builds(wire.BlockRange, U64, U32), max_size=256))
def test_any_ranges_come_back(ranges: list[wire.BlockRange]) -> None:
    assert wire.unpack_ranges(wire.pack_ranges(ranges)) == ranges


@given(st.binary(max_size=80))
def test_no_bytes_do_more_than_raise(data: bytes) -> None:
    for unpack in (
        wire.unpack_command,
        wire.unpack_completion,
        wire.unpack_connect_data,
        wire.unpack_ranges,
        wire.CmRequest.unpack,
        wire.CmAccept.unpack,
        wire.CmReject.unpack,
    ):
        with suppress(WireError):
            unpack(data)


def test_a_completion_has_the_bytes_of_the_specification() -> None:
    status = Status(StatusType.COMMAND, 0x91, final=True)
    packed = wire.Completion(0x0123, 0x1, 5, 0, status).pack()
    assert packed.hex() == "01000000000000000500000023012283"
    assert status == AUTHENTICATION_REQUIRED._replace(final=True)


def test_connecting_has_the_bytes_of_the_specification() -> None:
    assert wire.CmRequest(1, 32, 32, 7).pack().hex() == "0000010020001f000700" + "00" * 22
    assert wire.CmAccept(64).pack().hex() == "00004000" + "00" * 28
    assert wire.CmAccept.unpack(wire.CmAccept(64).pack() + bytes(164)) == wire.CmAccept(64)
    assert wire.CmReject.INVALID_CONTROLLER.pack().hex() == "00000900"
    assert wire.CmReject.unpack(bytes.fromhex("00000600") + bytes(144)) is wire.CmReject.NO_RESOURCES
    data = wire.ConnectData(bytes(range(16)), wire.ANY_CONTROLLER, "nqn.a", "nqn.b").pack()
    assert (data[:18].hex(), data[256:262], data[512:518], data[768:]) == (
        bytes(range(16)).hex() + "ffff",
        b"nqn.a\0",
        b"nqn.b\0",
        bytes(256),
    )


@pytest.mark.parametrize(
    "unpack, data, message",
    [
        (wire.CmRequest.unpack, bytes([1]) + bytes(31), "format 1"),
        (wire.CmRequest.unpack, bytes(31), "31 bytes are not a connection request, which has 32"),
        (wire.CmAccept.unpack, bytes(3), "which has 32"),
        (wire.CmReject.unpack, bytes(4), "reason 00h"),
        (wire.CmReject.unpack, bytes(2), "say no reason"),
        (wire.unpack_command, bytes(64), "flags 00h"),
        (wire.unpack_command, bytes([2, 0x40]) + bytes(62), "SGL descriptor of kind 00h"),
        (wire.unpack_ranges, bytes(17), "17 bytes"),
        (Controller.unpack, bytes(512), "512 bytes"),
    ],
)
def test_what_cannot_be_read_is_said(unpack, data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        unpack(data)


@pytest.mark.parametrize(
    "build",
    [
        lambda: wire.connect(1, 0, DATA),
        lambda: wire.read(1, 0, 0, DATA),
        lambda: wire.read(1, 0, (1 << 16) + 1, DATA),
        lambda: wire.deallocate(1, 257, DATA),
        lambda: wire.Keyed(0, 1 << 24, 0).pack(),
        lambda: wire.ConnectData(bytes(16), 0, "n" * 224, "nqn.b").pack(),
        lambda: wire.ConnectData(bytes(16), 0, "", "nqn.b").pack(),
        lambda: wire.ConnectData(bytes(15), 0, "nqn.a", "nqn.b").pack(),
    ],
)
def test_what_does_not_fit_is_refused(build) -> None:
    with pytest.raises(ValueError, match="not"):
        build()


def test_queues_are_the_fewer_of_both_kinds() -> None:
    assert wire.granted_queues(0x0003_0007) == 4
    assert wire.granted_queues(0x0007_0000) == 1


# ── what they say of themselves ──────────────────────────────────────────────────────────────────────────────


def controller_data(**fields: tuple[int, bytes]) -> bytes:
    """An answer to Identify with these bytes at these offsets."""
    data = bytearray(IDENTIFY_SIZE)
    for at, content in fields.values():
        data[at : at + len(content)] = content
    return bytes(data)


def test_a_controller_is_read_where_the_specification_has_it() -> None:
    data = controller_data(
        serial=(4, b"SERIAL".ljust(20)),
        model=(24, b"Linux".ljust(40)),
        firmware=(64, b"6.12".ljust(8)),
        mdts=(77, b"\x08"),
        cntlid=(78, b"\x05\x00"),
        maxcmd=(514, b"\x80\x00"),
        nn=(516, b"\x00\x04\x00\x00"),
        oncs=(520, b"\x0c\x00"),
        vwc=(525, b"\x07"),
        sgls=(536, b"\x05\x00\x00\x00"),
        subnqn=(768, b"nqn.kv\0"),
        ioccsz=(1792, b"\x04\x04\x00\x00"),
    )
    assert Controller.unpack(data) == Controller(
        "SERIAL", "Linux", "6.12", 1 << 20, 5, 128, 1024, True, True, True, True, "nqn.kv", 16384
    )
    bare = Controller.unpack(bytes(IDENTIFY_SIZE))
    assert (bare.transfer_limit, bare.takes_keyed, bare.capsule_data) == (0, False, 0)


def test_a_namespace_is_read_where_the_specification_has_it() -> None:
    data = controller_data(
        nsze=(0, (1000).to_bytes(8, "little")),
        flbas=(26, b"\x21"),  # format 17: low bits 1, high bits 1
        dps=(29, b"\x01"),
        nguid=(104, bytes(range(16))),
        lbaf17=(128 + 4 * 17, b"\x08\x00\x0c\x00"),
    )
    assert Namespace.unpack(data) == Namespace(1000, 4096, 8, True, bytes(range(16)))
    assert not Namespace.unpack(bytes(IDENTIFY_SIZE)).exists
    with pytest.raises(WireError, match=r"2\^3 bytes"):
        Namespace.unpack(controller_data(nsze=(0, b"\x01"), lbaf0=(128, b"\x00\x00\x03\x00")))


def test_active_namespaces_are_a_list_that_zeros_end() -> None:
    assert unpack_active(controller_data(ids=(0, b"\x01\0\0\0\x07\0\0\0"))) == [1, 7]


@given(st.integers(1, 1 << 16), st.integers(0, 255))
def test_capabilities_come_back(depth: int, halves: int) -> None:
    capabilities = Capabilities(depth, halves / 2)
    assert Capabilities.unpack(capabilities.pack()) == capabilities


def test_a_controllers_state_and_how_it_is_turned_on() -> None:
    assert (ENABLE, SHUT_DOWN) == (0x460001, 0x464001)
    assert ControllerState.unpack(1) == ControllerState(ready=True, failed=False)
    assert ControllerState.unpack(2) == ControllerState(ready=False, failed=True)


# ── statuses ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(STATUSES)
def test_any_status_comes_back_and_has_words(status: Status) -> None:
    assert Status.unpack(status.pack()) == status
    assert f"{status.code:02x}h" in status.describe()
    assert status.ok == (status[:2] == SUCCESS[:2])


@pytest.mark.parametrize(
    "status, fabrics, words",
    [
        (Status(0, 0x80), False, "LBA out of range (status 0h/80h)"),
        (Status(2, 0x81), False, "unrecovered read error (status 2h/81h)"),
        (Status(1, 0x82), False, "attempted write to read only range (status 1h/82h)"),
        (Status(1, 0x82), True, "connect invalid parameters (status 1h/82h)"),
        (Status(1, 0x06), True, "invalid firmware slot (status 1h/06h)"),
        (Status(7, 0x01), False, "vendor specific (status 7h/01h)"),
        (Status(5, 0x01), False, "unknown (status 5h/01h)"),
    ],
)
def test_a_status_has_a_name(status: Status, fabrics: bool, words: str) -> None:
    assert status.describe(fabrics=fabrics) == words
    assert str(CommandFailed("Connect", status, fabrics=fabrics)) == f"Connect: {words}"

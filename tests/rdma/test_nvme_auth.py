"""Authentication: what is sent, what is computed, and both sides of a conversation."""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma.authentication import Keys
from rdma.bring_up import Identity
from rdma.errors import KeyRefused, NvmeError, WireError
from rdma.initiator import open_initiator
from rdma.memory_authentication import Authentication, Terms
from rdma.memory_target import MemoryTarget
from rdma.nvme_auth import (
    Challenge,
    Failure,
    Group,
    Hash,
    Kind,
    Negotiate,
    Parties,
    Reply,
    Secret,
    Success,
    augmented,
    controller_proof,
    host_proof,
    kind_of,
    pack_failure,
    pack_success_2,
    unpack_failure,
)

WHO = Parties("nqn.2014-08.org.example:host", "nqn.2014-08.org.example:kv")
KEY = bytes(range(32))


def written(key: bytes, number: int) -> str:
    return f"DHHC-1:{number:02}:{base64.b64encode(key + zlib.crc32(key).to_bytes(4, 'little')).decode()}:"


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [32, 48, 64])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_secrets_as_tools_write_them(size: int, number: int) -> None:
    key = bytes(range(size))
    secret = Secret.parse(written(key, number) + "\n")
    assert secret == Secret(key, Hash(number) if number else None)
    assert "key" not in repr(secret)


def test_a_secret_is_bound_to_its_owners_name() -> None:
    assert Secret(KEY, None).of(WHO.host) == KEY
    bound = hmac.digest(KEY, WHO.host.encode() + b"NVMe-over-Fabrics", "sha384")
    assert Secret(KEY, Hash.SHA384).of(WHO.host) == bound


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "DHHC-1:… is wanted"),
        (written(KEY, 0)[:-1], "DHHC-1:… is wanted"),
        (written(KEY, 0).replace(":00:", ":04:"), "DHHC-1:… is wanted"),
        ("DHHC-1:00:!!:", "not base64"),
        (written(bytes(33), 0), "its checksum is wrong"),
        (written(KEY, 0).replace("AAEC", "AAED"), "its checksum is wrong"),
    ],
)
def test_what_is_no_secret(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Secret.parse(text)


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────

GROUPS = [group for group in Group if group is not Group.NONE]
ENDS = {
    Group.FFDHE2048: "886B423861285C97FFFFFFFFFFFFFFFF",
    Group.FFDHE3072: "25E41D2B66C62E37FFFFFFFFFFFFFFFF",
    Group.FFDHE4096: "C68A007E5E655F6AFFFFFFFFFFFFFFFF",
    Group.FFDHE6144: "A41D570D7938DAD4A40E329CD0E40E65FFFFFFFFFFFFFFFF",
    Group.FFDHE8192: "D68C8BB7C5C6424CFFFFFFFFFFFFFFFF",
}
"""How the primes end in RFC 7919, appendix A."""


@pytest.mark.parametrize("group", GROUPS)
def test_the_primes_are_those_of_the_standard(group: Group) -> None:
    digits = f"{group.prime:X}"
    assert len(digits) == 2 * group.size
    assert digits.startswith("FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1")
    assert digits.endswith(ENDS[group])


@pytest.mark.parametrize("group", GROUPS[:3])
def test_they_are_safe_primes(group: Group) -> None:
    half = (group.prime - 1) // 2
    assert pow(2, group.prime - 1, group.prime) == 1
    assert pow(3, half - 1, half) == 1


@pytest.mark.parametrize("group", GROUPS)
def test_both_sides_of_an_exchange_know_the_same(group: Group) -> None:
    ours, theirs = 0x1234567, 0x89ABCDEF
    assert group.shared(ours, group.public(theirs)) == group.shared(theirs, group.public(ours))


@pytest.mark.parametrize("number", [0, 1, -1])
def test_half_an_exchange_that_gives_the_secret_away(number: int) -> None:
    group = Group.FFDHE2048
    with pytest.raises(WireError):
        group.shared(5, (number % group.prime).to_bytes(group.size, "big"))
    with pytest.raises(WireError):
        group.shared(5, b"\2")


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_golden_bytes() -> None:
    negotiate = Negotiate(0x1234, (Hash.SHA256, Hash.SHA512), (Group.NONE, Group.FFDHE2048)).pack()
    assert negotiate == bytes.fromhex("00000000 34120001 01000202 0103") + bytes(28) + bytes([0, 1]) + bytes(
        28
    )
    challenge = Challenge(0x1234, Hash.SHA256, Group.NONE, 0x01020304, KEY).pack()
    assert challenge == bytes.fromhex("01010000 34122000 01000000 04030201") + KEY
    reply = Reply(0x1234, KEY, b"", None, 0).pack()
    assert reply == bytes.fromhex("01020000 34122000 00000000 00000000") + KEY + bytes(32)
    asking = Reply(0x1234, KEY, b"xy", KEY, 7).pack()
    assert asking == bytes.fromhex("01020000 34122000 01000200 07000000") + KEY + KEY + b"xy"
    assert Success(0x1234, KEY).pack() == bytes.fromhex("01030000 34122000 01000000 00000000") + KEY
    assert pack_success_2(0x1234) == bytes.fromhex("01040000 3412") + bytes(10)
    assert pack_failure(Kind.FAILURE_2, 0x1234, Failure.FAILED) == bytes.fromhex("01f00000 34120101")


@given(
    st.integers(1, 0xFFFF),
    st.sampled_from(Hash),
    st.sampled_from(Group),
    st.integers(0, 0xFFFFFFFF),
    st.booleans(),
)
def test_messages_come_back(transaction: int, hash_: Hash, group: Group, sequence: int, asks: bool) -> None:
    value, exchange = bytes(range(hash_.size)), bytes(group.size)
    for message in (
        Negotiate(transaction, (hash_,), (group,)),
        Challenge(transaction, hash_, group, sequence, value, exchange),
        Reply(transaction, value, exchange, value if asks else None, sequence),
        Success(transaction, value if asks else None),
    ):
        assert type(message).unpack(message.pack() + bytes(5)) == message


@given(st.binary(max_size=200))
def test_what_is_no_message(data: bytes) -> None:
    for kind in (Negotiate, Challenge, Reply, Success):
        try:
            kind.unpack(data)
        except (WireError, ValueError):
            continue
        assert kind_of(data)


def test_reasons_in_words() -> None:
    assert unpack_failure(pack_failure(Kind.FAILURE_1, 1, Failure.GROUP_NOT_USABLE)) == "group not usable"
    assert unpack_failure(bytes(7) + b"\x77") == "reason 77h"


# ── proofs ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_proofs_are_made_of_what_the_standard_says() -> None:
    """8.13.5.4: HMAC(key, challenge || sequence || transaction || 0 || who || NQN || 0 || NQN)."""
    host, subsystem = WHO.host.encode(), WHO.subsystem.encode()
    numbers = (5).to_bytes(4, "little") + (9).to_bytes(2, "little") + b"\0"
    said = host_proof(Hash.SHA256, KEY, b"c" * 32, 5, 9, WHO)
    whole = b"c" * 32 + numbers + b"HostHost" + host + b"\0" + subsystem
    assert said == hmac.digest(KEY, whole, "sha256")
    said = controller_proof(Hash.SHA512, KEY, b"c" * 64, 5, 9, WHO)
    whole = b"c" * 64 + numbers + b"Controller" + subsystem + b"\0" + host
    assert said == hmac.digest(KEY, whole, "sha512")


def test_a_challenge_is_augmented_by_the_exchange() -> None:
    assert augmented(Hash.SHA256, KEY, b"") == KEY
    expected = hmac.digest(hashlib.sha256(b"shared").digest(), KEY, "sha256")
    assert augmented(Hash.SHA256, KEY, b"shared") == expected


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────────

OURS, ITS, OTHER = Secret(KEY, Hash.SHA256), Secret(bytes(48), None), Secret(b"x" * 32, None)


async def connected(terms: Terms | None, keys: Keys) -> None:
    target = MemoryTarget(terms=terms)
    who = Identity(WHO.subsystem, WHO.host, bytes(16), keys=keys)
    try:
        async with open_initiator([target], who, 1) as device:
            await device.flush()
            assert terms is None or all(
                connection.authentication is not None and connection.authentication.passed
                for connection in target.connections
            )
    finally:
        assert not target.regions


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("group", [Group.NONE, Group.FFDHE2048, Group.FFDHE8192])
@pytest.mark.parametrize("hash_", list(Hash))
async def test_each_queue_is_authenticated(hash_: Hash, group: Group, mutual: bool) -> None:
    await connected(Terms(OURS, ITS, hash_, group), Keys(OURS, ITS if mutual else None))


@pytest.mark.parametrize(
    "terms, keys, words",
    [
        (Terms(OTHER), Keys(OURS), r"refuses the key of this host, .*\(failed\)"),
        (Terms(OURS, OTHER), Keys(OURS, ITS), "does not prove that it knows the key in 'controller_key'"),
        (Terms(OURS), Keys(OURS, ITS), "does not prove that it knows the key in 'controller_key'"),
        (None, Keys(OURS, ITS), "does not prove who it is"),
    ],
)
async def test_who_does_not_believe_whom(terms: Terms | None, keys: Keys, words: str) -> None:
    with pytest.raises(KeyRefused, match=words):
        await connected(terms, keys)


async def test_a_key_that_nobody_asks_for_does_no_harm() -> None:
    await connected(None, Keys(OURS))


async def test_a_target_that_talks_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdma.memory_authentication.Authentication.give", lambda _: b"\1\2" + bytes(20))
    with pytest.raises(NvmeError, match="reply instead of challenge"):
        await connected(Terms(OURS), Keys(OURS))


async def test_a_target_that_ends_the_connection_over_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def give(_: Authentication) -> bytes:
        raise KeyError

    monkeypatch.setattr(Authentication, "give", give)
    with pytest.raises(
        KeyRefused, match=r"ended the connection while this host, .*, authenticated .* probably not"
    ):
        await connected(Terms(OURS), Keys(OURS))

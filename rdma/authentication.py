"""How host and controller prove to each other who they are, on a queue that was just connected. Pure, but for random bytes."""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass

from rdma import nvme_wire as wire
from rdma.errors import CommandFailed, KeyRefused, TransportBroken, WireError
from rdma.nvme_auth import (
    MESSAGE_MAX,
    PRIVATE_BYTES,
    Challenge,
    Failure,
    Group,
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
from rdma.steps import Ask, Steps


@dataclass(frozen=True, slots=True)
class Keys:
    """:ivar host: our secret
    :ivar controller: the controller's, which it must prove to know; None if it need not
    """

    host: Secret
    controller: Secret | None = None


def authenticate(who: Parties, keys: Keys) -> Steps[None]:
    """:raises KeyRefused: the controller does not believe us, or we do not believe it"""
    transaction = 1 + secrets.randbelow(0xFFFF)
    yield _send(Negotiate(transaction).pack())
    challenge = Challenge.unpack((yield from _receive(who, Kind.CHALLENGE)))
    shared, exchange = _exchange(challenge)
    value = augmented(challenge.hash, challenge.value, shared)
    proof = host_proof(
        challenge.hash, keys.host.of(who.host), value, challenge.sequence, challenge.transaction, who
    )
    if keys.controller is None:
        yield _send(Reply(transaction, proof, exchange).pack())
        yield from _receive(who, Kind.SUCCESS_1)
        return
    asked = Reply(
        transaction,
        proof,
        exchange,
        secrets.token_bytes(challenge.hash.size),
        1 + secrets.randbelow(0xFFFFFFFF),
    )
    yield _send(asked.pack())
    success = Success.unpack((yield from _receive(who, Kind.SUCCESS_1)))
    if not _proves(success, keys.controller, challenge, asked, shared, who):
        with suppress(TransportBroken, CommandFailed):  # the controller may end the connection over it
            yield _send(pack_failure(Kind.FAILURE_2, transaction, Failure.FAILED))
        raise KeyRefused(f"{who.subsystem} does not prove that it knows the key in 'controller_key'")
    yield _send(pack_success_2(transaction))


def _exchange(challenge: Challenge) -> tuple[bytes, bytes]:
    """What both sides know behind this, and our half of it. Nothing, where the controller wants none."""
    if challenge.group is Group.NONE:
        return b"", b""
    private = int.from_bytes(secrets.token_bytes(PRIVATE_BYTES), "big")
    return challenge.group.shared(private, challenge.exchange), challenge.group.public(private)


def _proves(
    success: Success, secret: Secret, challenge: Challenge, asked: Reply, shared: bytes, who: Parties
) -> bool:
    assert asked.challenge is not None
    value = augmented(challenge.hash, asked.challenge, shared)
    key = secret.of(who.subsystem)
    expected = controller_proof(challenge.hash, key, value, asked.sequence, asked.transaction, who)
    return success.proof is not None and hmac.compare_digest(success.proof, expected)


def _send(message: bytes) -> Ask:
    return Ask("authenticating", lambda sgl: wire.authentication_send(sgl, len(message)), data=message)


def _receive(who: Parties, wanted: Kind) -> Steps[bytes]:
    ask = Ask("authenticating", lambda sgl: wire.authentication_receive(sgl, MESSAGE_MAX), answer=MESSAGE_MAX)
    try:
        answer = yield ask
    except TransportBroken as error:  # the kernel's target may do so before its refusal has arrived
        raise KeyRefused(
            f"{who.subsystem} ended the connection while this host, {who.host}, authenticated ({error}): the key is "
            "probably not the one that the target has for it"
        ) from None
    found = kind_of(answer.data)
    if found in (Kind.FAILURE_1, Kind.FAILURE_2):
        raise KeyRefused(
            f"{who.subsystem} refuses the key of this host, {who.host} ({unpack_failure(answer.data)}): it is not the "
            "one that the target has for it"
        )
    if found is not wanted:
        raise WireError(f"{found.name.lower()} instead of {wanted.name.lower()} while authenticating")
    return answer.data

"""The controller's side of an authentication, for targets in memory. Shipped with them."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from random import Random

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
)

_PRIVATE = 0x1234_5678_9ABC_DEF0
"""Nothing that a target in memory has is secret."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a target demands of hosts.

    :ivar host: the secret of the only one that may connect
    :ivar controller: its own; None if it cannot prove who it is
    """

    host: Secret
    controller: Secret | None = None
    hash: Hash = Hash.SHA256
    group: Group = Group.NONE


class Authentication:
    """Of one queue.

    :ivar passed: the host has proved who it is
    :ivar disbelieved: it has said that it does not believe us
    """

    def __init__(self, who: Parties, terms: Terms, rng: Random) -> None:
        self.passed = False
        self.disbelieved = False
        self._who = who
        self._terms = terms
        self._next = b""
        exchange = terms.group.public(_PRIVATE) if terms.group is not Group.NONE else b""
        value = rng.randbytes(terms.hash.size)
        self._challenge = Challenge(0, terms.hash, terms.group, 1 + rng.randrange(1 << 31), value, exchange)

    def take(self, message: bytes) -> None:
        """What the host sends."""
        kind = kind_of(message)
        if kind is Kind.NEGOTIATE:
            self._take_negotiate(Negotiate.unpack(message))
        elif kind is Kind.REPLY:
            self._take_reply(Reply.unpack(message))
        else:
            self.disbelieved = kind is not Kind.SUCCESS_2

    def give(self) -> bytes:
        """What the host receives."""
        return self._next

    def _take_negotiate(self, message: Negotiate) -> None:
        terms, said = self._terms, self._challenge
        if terms.hash not in message.hashes or terms.group not in message.groups:
            self._next = pack_failure(Kind.FAILURE_1, message.transaction, Failure.HASH_NOT_USABLE)
            return
        self._challenge = Challenge(
            message.transaction, terms.hash, terms.group, said.sequence, said.value, said.exchange
        )
        self._next = self._challenge.pack()

    def _take_reply(self, message: Reply) -> None:
        terms, asked = self._terms, self._challenge
        shared = b"" if terms.group is Group.NONE else terms.group.shared(_PRIVATE, message.exchange)
        value = augmented(terms.hash, asked.value, shared)
        key = terms.host.of(self._who.host)
        expected = host_proof(terms.hash, key, value, asked.sequence, asked.transaction, self._who)
        if not hmac.compare_digest(expected, message.proof):
            self._next = pack_failure(Kind.FAILURE_1, message.transaction, Failure.FAILED)
            return
        self.passed = True
        self._next = Success(message.transaction, self._proof(message, shared)).pack()

    def _proof(self, message: Reply, shared: bytes) -> bytes | None:
        terms = self._terms
        if message.challenge is None or terms.controller is None:
            return None
        value = augmented(terms.hash, message.challenge, shared)
        key = terms.controller.of(self._who.subsystem)
        return controller_proof(terms.hash, key, value, message.sequence, message.transaction, self._who)

"""What a conversation with a controller is made of: what is asked, what is answered. Pure.

A conversation is a generator: it yields what to ask, or for how long to pause, is sent the answer, and returns what it found
out. Whoever runs one does the sending and the waiting, and needs to know nothing of what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from rdma import nvme_wire as wire


class Ask(NamedTuple):
    """A command, and the data that go with it.

    :ivar what: for people
    :ivar command: made when it is known where the data are
    :ivar data: that the controller reads; as many bytes are lent as it has, or as `answer` says
    :ivar answer: bytes that the controller writes
    """

    what: str
    command: Callable[[wire.Sgl], wire.Command]
    data: bytes = b""
    answer: int = 0


class Answer(NamedTuple):
    """:ivar result: of the completion"""

    result: int
    data: bytes


T = TypeVar("T")
Steps = Generator[Ask | float, Answer, T]
"""Yields what to ask, or the seconds to pause; returns what was found out."""

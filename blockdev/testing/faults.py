"""What may happen to an operation of a FaultyDevice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Operation(StrEnum):
    READ = "read"
    WRITE = "write"
    FLUSH = "flush"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one operation.

    :ivar errno: the system's error number, 0 for none
    :ivar delay: seconds before it ends; longer than the device's time-out is a DeviceTimeout, and infinity ends
        only by `FaultyDevice.release`
    """

    errno: int = 0
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """What may happen to any operation.

    :ivar error_rate: share of operations that fail with EIO
    :ivar timeout_rate: share of operations that miss the deadline, by up to `late` seconds
    :ivar delay: seconds, from and to, of every operation
    """

    error_rate: float = 0.0
    timeout_rate: float = 0.0
    late: float = 10.0
    delay: tuple[float, float] = (0.0, 0.0)


class LatePending:
    """An operation that went on after its deadline; see `errors.Pending`."""

    def __init__(self) -> None:
        self._done = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self._done

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        if self._done:
            callback()
        else:
            self._callbacks.append(callback)

    def finish(self) -> None:
        self._done = True
        for callback in self._callbacks:
            callback()

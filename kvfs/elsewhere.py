"""Storing again what a device was lost under, or did not take: the next slots are elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from blockdev.errors import BlockError, DeviceGivenUp, DeviceLost, Unavailable, WriteFailed

_Result = TypeVar("_Result")

LOSSES: Final = (DeviceGivenUp, DeviceLost, Unavailable, WriteFailed)
"""After which a store is tried again. Not what met its deadline on a device that is not lost: that may take as long again."""
_ATTEMPTS: Final = 3
"""The first may find out that a device is lost, the second that so is one behind the same address; then all are known."""


async def until_stored(
    attempt: Callable[[], Awaitable[_Result]], on_loss: Callable[[BlockError], object]
) -> _Result:
    """What `attempt` returns, at last.

    :param on_loss: called before it is tried again; may raise, to end it there
    :raises BlockError: the last attempt's, or one after which no other makes sense
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return await attempt()
        except LOSSES as error:
            on_loss(error)
    return await attempt()

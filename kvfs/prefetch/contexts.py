"""What is known of the attention of each request, and what follows for the blocks to load. Pure; needs numpy.

A context is what a request reads, block after block. It is known for as long as the request runs, and then until it has waited
behind too much else: a request whose blocks begin with those of one that ended goes on with what that one's attention read,
since what is read goes on being read. A wrong guess of that costs order, never bytes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np

from kvfs.errors import BadAttention
from kvfs.prefetch.arrays import Floats, Ints
from kvfs.prefetch.checks import Shape, keys_of, masses, queries_of
from kvfs.prefetch.observation import Observation
from kvfs.prefetch.sketch import RECENT, SINK, Probe, Sketch

GROUPS = 1024
"""Layer groups that a request may have."""
QUERIES = 32
"""The last queries for each head of keys, which are asked what they would read."""
FRESH = 128
"""Tokens after which queries are old: what was observed since says more."""
IDLE_BYTES = 256 << 20
"""For contexts of requests that ended. One of 1M tokens in blocks of 64 takes half a megabyte a layer group, and a probe of 8
heads 128 wide 440 MB: that goes with its request."""


class Group:
    """One layer group of a context.

    :param block: tokens of a block
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._sketch = Sketch(block)
        self._shape: Shape | None = None
        self._queries: Floats | None = None
        self._age = 0

    @property
    def size(self) -> int:
        """Bytes, about: 29 for each block; of a probe's 34 for each key, and bounds of 8 for each channel and 8/7 block."""
        bytes_ = 29 * len(self._sketch)
        if self._sketch.probe is not None and self._shape is not None:
            heads, width = self._shape
            bytes_ += len(self._sketch.probe.digests) * heads * (34 * self._block + 64 * width // 7)
        return bytes_

    def attend(self, said: Observation) -> None:
        """:raises BadAttention: it does not fit; nothing has changed then"""
        observed = None if said.mass is None else masses(said.mass, said.blocks)
        shape, probe = self._shape, self._sketch.probe
        further = None
        if said.keys is not None:
            further = keys_of(said.keys, self._block, shape, len(probe.digests) if probe else 0)
            shape = Shape(further.shape[0], further.shape[2])
        asked = None if said.queries is None else queries_of(said.queries, shape, QUERIES)
        if further is not None:
            self._append(further)
        if observed is not None:
            self._observe(*observed, said.tokens)
        if asked is not None:
            self._queries, self._age = asked, 0

    def choose(self, blocks: int, count: int) -> Ints:
        """Which of the first so many blocks to load, the most wanted first: `count`, or all if there are fewer.

        The first 64 tokens and the last 128 are among them always, and are the first.
        """
        self._sketch.grow(blocks)
        first = min(-(-SINK // self._block), blocks)
        last = blocks - -(-RECENT // self._block)
        always = np.concatenate([np.arange(first), np.arange(max(first, last), blocks)])
        beyond = len(self._sketch) - blocks
        wanted = max(min(count, blocks) - len(always), 0)
        best = self._sketch.choose(wanted + beyond, self._queries)
        inside = best[(best >= first) & (best < last)][:wanted]
        return np.concatenate([always, inside])

    def _append(self, keys: Floats) -> None:
        heads, _, width = keys.shape
        if self._sketch.probe is None:
            self._sketch.probe = Probe(heads, width, self._block)
            self._shape = Shape(heads, width)
        self._sketch.probe.append(keys)
        self._sketch.grow(len(self._sketch.probe.digests))

    def _observe(self, mass: Floats, blocks: Ints, tokens: int) -> None:
        if len(blocks):
            self._sketch.grow(int(blocks.max()) + 1)
        self._sketch.observe(mass, blocks, tokens)
        self._age += tokens
        if self._age >= FRESH:
            self._queries = None


class Context:
    """What is known of the attention of one request.

    :param block: tokens of a block
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._groups: dict[int, Group] = {}

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(group.size for group in self._groups.values())

    def attend(self, group: int, said: Observation) -> None:
        """:raises BadAttention: it does not fit; nothing has changed then"""
        if not 0 <= group < GROUPS:
            raise BadAttention(f"layer group {group} is not between 0 and {GROUPS - 1}")
        if said.mass is None and said.blocks is not None:
            raise BadAttention("blocks without mass say nothing: give the share of each")
        if said.mass is None and said.queries is None and said.keys is None:
            raise BadAttention("nothing was said: give mass, queries or keys")
        if said.tokens < 1:
            raise BadAttention(f"{said.tokens} tokens cannot have read: give 1 or more")
        known = self._groups.get(group) or Group(self.block)
        known.attend(said)
        self._groups[group] = known

    def choose(self, group: int, blocks: int, budget: float) -> list[int]:
        """The most wanted of so many blocks first.

        :param budget: which share of them, 1 for all; never fewer than always count
        """
        known = self._groups.get(group) or Group(self.block)
        chosen: list[int] = known.choose(blocks, math.ceil(budget * blocks)).tolist()
        return chosen


class Contexts:
    """Those of requests that run, and of some that ended.

    :param idle_bytes: what the latter may take
    """

    def __init__(self, idle_bytes: int = IDLE_BYTES) -> None:
        self._idle_bytes = idle_bytes
        self._idle: OrderedDict[tuple[int, int, Hashable], Context] = OrderedDict()
        self._idle_size = 0

    def __len__(self) -> int:
        """Of requests that ended."""
        return len(self._idle)

    def begin(self, chain: Sequence[Hashable], block: int) -> Context:
        """What is known of a context that begins with these blocks: what a request left that read the longest beginning of it,
        which is not there for another one then.

        :param chain: its blocks, each named by all that precedes it
        :param block: tokens of each
        """
        known = [
            name
            for name in self._idle
            if name[0] == block and name[1] <= len(chain) and chain[name[1] - 1] == name[2]
        ]
        if not known:
            return Context(block)
        return self._forget(max(known, key=lambda name: name[1]))

    def end(self, chain: Sequence[Hashable], context: Context) -> None:
        """A request is over; what was known longest is forgotten for it, if need be."""
        if not chain or context.size > self._idle_bytes:
            return
        name = (context.block, len(chain), chain[-1])
        if name in self._idle:
            self._forget(name)
        self._idle[name] = context
        self._idle_size += context.size
        while self._idle_size > self._idle_bytes:
            self._forget(next(iter(self._idle)))

    def _forget(self, name: tuple[int, int, Hashable]) -> Context:
        context = self._idle.pop(name)
        self._idle_size -= context.size
        return context

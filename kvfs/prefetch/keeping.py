"""Which blocks stay in memory: those worth holding most, leaves first, no worse than the least recently used. Pure.

A request's blocks are cut into segments: the run of blocks that have the same history (how often they were used, and
whether they are the chain's end). A segment is idle as one, and what comes back of it is learnt as a part of one. It is
let go from its end, and a block only after all that follow it: a block without its parents is of no use.

Beside it runs a cache of identities alone that lets go the least recently used, leaves first (`LeafLru`). When the prediction
has lost more against it than it may, or it misses too little for anything to be gained, its order is what counts for a
while, each time for longer. This is what makes a prediction safe that is wrong (LARU does the same).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from kvfs.prefetch.idle import Entry, Idle
from kvfs.prefetch.returns import Kind, Returns

WINDOW = 256
"""Requests after which the two orders are compared."""
AT_STAKE, CREDIT = 0.1, 0.2
"""The prediction may lose as much of what is asked for in a window, and what it has gained before, up to this."""
REST, LONGEST_REST, LONGER = 4, 256, 4
"""Windows for which the least recently used decides then; each time longer, unless the prediction had gained."""
NOTHING_TO_GAIN = 0.01
"""Its order is used if so small a part of the blocks that were known missed in it."""
TURNS = 2
USES = 2
"""Turns and uses beyond which there is no difference."""


class LeafLru:
    """A cache of identities, least recently used first, and of a chain its end first.

    :param capacity: blocks
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, block: object) -> bool:
        return block in self._held

    def request(self, chain: Sequence[Hashable]) -> int:
        """Ask for a chain, from its root. Returns how many blocks at its beginning were there; all are now, if they fit."""
        held = self._held
        hits = leading(chain, held)
        for block in reversed(chain):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self.capacity:
            held.popitem(last=False)
        return hits


def leading(chain: Iterable[Hashable], held: Container[Hashable]) -> int:
    """How many blocks at the beginning of a chain are there: only these are of use."""
    count = 0
    for block in chain:
        if block not in held:
            break
        count += 1
    return count


@dataclass(slots=True)
class Guard:
    """Whether to trust the prediction.

    :ivar balance: what it has gained since it was last trusted, of what was asked for in a window
    :ivar resting: windows for which the least recently used still decides
    :ivar rest: for how many it will, when next it does
    """

    requests: int = 0
    known: int = 0
    ours: int = 0
    theirs: int = 0
    balance: float = 0.0
    resting: int = 0
    rest: int = REST

    @property
    def trusted(self) -> bool:
        return self.resting == 0

    def note(self, known: int, ours: int, theirs: int) -> None:
        """A request was served.

        :param known: blocks at its beginning that exist
        :param ours, theirs: how many of them were held, and would have been by `LeafLru`
        """
        self.requests += 1
        self.known += known
        self.ours += ours
        self.theirs += theirs
        if self.requests >= WINDOW:
            self._judge()
            self.requests = self.known = self.ours = self.theirs = 0

    def _judge(self) -> None:
        if self.resting:
            self.resting -= 1
            self.balance = 0.0
        else:
            self.balance += (self.ours - self.theirs) / max(self.known, WINDOW)
        if self.balance >= CREDIT:
            self.balance, self.rest = CREDIT, REST
        elif self.balance <= -AT_STAKE:
            self.resting, self.rest = self.rest, min(LONGER * self.rest, LONGEST_REST)
        elif self.known - self.theirs <= NOTHING_TO_GAIN * self.known:
            self.resting = max(self.resting, 1)


@dataclass(slots=True, eq=False)
class _Segment:
    """Blocks of a chain with the same history, in the chain's order."""

    blocks: list[Hashable]
    size: int = 0
    entries: list[Entry[_Segment]] = field(default_factory=list)
    """What is learnt of it: from its use on, and from the request's end on."""


@dataclass(slots=True, eq=False)
class _Block:
    segment: _Segment
    uses: int = 0
    turn: int = 0
    parent: Hashable = None
    children: int = 0
    """That are held."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """:ivar held: blocks in memory
    :ivar known: blocks whose return is waited for
    :ivar trusted: whether the prediction decides, not the least recently used
    """

    held: int
    known: int
    trusted: bool


class Request:
    """One that is being served; made by `Keeper.begin`.

    :ivar hits: blocks at its beginning that were held
    """

    __slots__ = ("hits", "segments")

    def __init__(self, hits: int, segments: dict[Kind, _Segment]) -> None:
        self.hits = hits
        self.segments = segments


class Keeper:
    """Decides which blocks stay.

    Times are seconds on the caller's clock.

    :param capacity: blocks
    :param returns: what is learnt of returns, by this keeper and before
    :param dropped: called with each block that does not stay
    """

    def __init__(
        self, capacity: int, returns: Returns, dropped: Callable[[Hashable], None] = lambda _: None
    ) -> None:
        self._capacity = capacity
        self._dropped = dropped
        self._idle: Idle[_Segment] = Idle(returns)
        self._blocks: dict[Hashable, _Block] = {}
        self._held: OrderedDict[Hashable, None] = OrderedDict()  # the least recently used first, leaves first
        self._shadow = LeafLru(capacity)
        self._guard = Guard()

    def __contains__(self, block: object) -> bool:
        return block in self._held

    def begin(self, chain: Sequence[Hashable], now: float) -> Request:
        """A request reads a chain, and computes or loads what is not held. All of it is held, as far as it is worth it."""
        self._idle.age(now)
        hits = leading(chain, self._held)
        known = self._came_back(chain, now)
        self._guard.note(known, hits, self._shadow.request(chain))
        request = Request(hits, self._segments(chain, known))
        for block in reversed(chain):
            self._held[block] = None
            self._held.move_to_end(block)
        for kind, segment in request.segments.items():
            segment.entries.append(self._idle.add(segment, kind, now))
        self._make_room()
        return request

    def end(self, request: Request, now: float, reason: str) -> None:
        """A request is over: why, tells when the next one comes.

        :param reason: the engine's, such as `tool_use`
        """
        self._idle.age(now)
        for kind, segment in request.segments.items():
            before = segment.entries[0]
            left = before.left
            if left > 0:
                self._idle.let_go(before)
                after = self._idle.add(segment, (*kind, reason), now)
                after.left = left
                segment.entries.append(after)

    def forget(self, block: Hashable) -> None:
        """A block exists no more, nor does what follows it. Nothing if it is not known."""
        self._drop(block)
        self._blocks.pop(block, None)

    def statistics(self) -> Statistics:
        """A frozen snapshot."""
        return Statistics(len(self._held), len(self._blocks), self._guard.trusted)

    def _came_back(self, chain: Sequence[Hashable], now: float) -> int:
        """Learn which segments this request takes up again; returns how many blocks at its beginning are known."""
        parts: dict[_Segment, int] = {}
        known = 0
        for block in chain:
            seen = self._blocks.get(block)
            if seen is None:
                break
            parts[seen.segment] = parts.get(seen.segment, 0) + 1
            known += 1
        for segment, count in parts.items():
            for entry in segment.entries:
                self._idle.returned(entry, now, count / segment.size)
        return known

    def _segments(self, chain: Sequence[Hashable], known: int) -> dict[Kind, _Segment]:
        blocks = self._blocks
        turn = min(max((blocks[b].turn for b in chain[max(known - 2, 0) : known]), default=-1) + 1, TURNS)
        segments: dict[Kind, _Segment] = {}
        parent: Hashable = None
        for number, block in enumerate(chain, 1):
            seen = blocks.get(block)
            kind = (number == len(chain), turn, seen.uses if seen else 0)
            segment = segments.get(kind)
            if segment is None:
                segment = segments[kind] = _Segment([])
            segment.blocks.append(block)
            segment.size += 1
            if seen is None:
                seen = blocks[block] = _Block(segment)
            seen.segment = segment
            seen.uses = min(seen.uses + 1, USES)
            seen.turn = turn
            if block not in self._held and parent is not None:
                seen.parent = parent
                blocks[parent].children += 1
            parent = block
        return segments

    def _make_room(self) -> None:
        if len(self._held) <= self._capacity:
            return
        if not self._guard.trusted:
            while len(self._held) > self._capacity:
                self._drop(next(iter(self._held)))
            return
        while len(self._held) > self._capacity:
            self._drop_cheapest()

    def _drop_cheapest(self) -> None:
        """Go through all that is idle once; another time is needed where what was dropped had hidden what it followed."""
        for entry in self._idle.cheapest():
            segment = entry.what
            while segment.blocks:
                block = segment.blocks[-1]
                seen = self._blocks.get(block)
                if seen is not None and seen.segment is segment and block in self._held:
                    if seen.children:
                        break
                    self._drop(block)
                segment.blocks.pop()
                if len(self._held) <= self._capacity:
                    return
            else:
                self._idle.let_go(entry)

    def _drop(self, block: Hashable) -> None:
        if self._held.pop(block, self) is self:
            return
        self._dropped(block)
        parent = self._blocks.get(self._blocks[block].parent)
        if parent is not None:
            parent.children -= 1

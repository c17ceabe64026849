"""Which record is the truth about a name. Pure.

A stamp is a hybrid logical clock: the wall clock in ns, pushed forward where it lags behind what was already seen.
Each publish, rename and removal gets a new one, and the highest stamp among the records of a name is the truth: a
record in the way of another is not erased first, only outdone. Every member, and every scan after a crash, comes to
the same answer from the same records, in whatever order it meets them.

A record is outdone

- by a later one of the same name;
- by a later one that lists its slot, under whatever name (a rename or removal by another member: an ALIAS or
  TOMBSTONE elsewhere, while the record itself still stands where it was);
- if it is an ALIAS, by the record that it replaces once that has a stamp as high (its owner took the change over);
- if it is a directory's, by a later one of the same directory, under whatever name: its identity follows from the name
  under which it was made, so several members may have made it.

What is outdone by nothing but a record that has gone would come back to life. So nothing is garbage while something
that it outdoes is still there, or may be there on a device that was not scanned.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from blockdev.types import NAMED_KINDS, Descriptor, DirectoryId, Kind, ObjectId, SlotRef, Stamp

NameKey = tuple[DirectoryId, bytes]
"""A name in a directory."""
Scanned = Callable[[SlotRef], bool]
"""Whether a slot was looked at, so that its absence from the records means that this use of it is over."""

_MERGE_ROUNDS = 64
"""Levels of directories below a directory made twice that are merged in turn; a bound, since media may hold loops."""


def next_stamp(wall_ns: int, largest_seen: Stamp) -> Stamp:
    """A stamp later than every one seen.

    :param wall_ns: the wall clock, ns since 1970; when it jumps back, stamps do not
    :param largest_seen: the largest stamp seen for the name, or for any name
    """
    return Stamp(max(wall_ns, largest_seen + 1))


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a set of records says."""

    live: dict[NameKey, Descriptor]
    """The record that each existing name stands for. The key has the canonical directory (see `same`), which need
    not be the one that the record names."""
    garbage: list[Descriptor]
    """Records that say nothing any more. To be made invalid in this order; whoever cannot make one invalid stops
    there, because a later one may be what keeps it from coming back. Empty where directories made more than once
    lie in a loop, which no member makes."""
    same: dict[DirectoryId, DirectoryId]
    """Directories made more than once under one name: each other id, and the smallest, whose children theirs are."""


def resolve(records: Iterable[Descriptor], scanned: Scanned = lambda _: True) -> Resolution:
    """Find the truth about every name. Whether its directory exists is not asked.

    :param records: the current record of each slot; kinds without a name are passed over
    """
    return _Resolver(records, scanned).resolution()


def unclaimed(
    parts: Iterable[Descriptor],
    claims: Mapping[SlotRef, Collection[SlotRef]],
    scanned: Scanned = lambda _: True,
) -> list[Descriptor]:
    """The bodies and index slots that are garbage: their head can be read, and it does not list them.

    :param parts: records of bodies and index slots; other kinds are passed over
    :param claims: for each head that counts, every slot that it lists, through its index slots too
    """
    return [
        part
        for part in parts
        if part.kind in {Kind.BODY, Kind.INDEX}
        and part.head is not None
        and scanned(part.head)
        and part.ref not in claims.get(part.head, ())
    ]


class _Resolver:
    def __init__(self, records: Iterable[Descriptor], scanned: Scanned) -> None:
        self._named = [record for record in records if record.kind in NAMED_KINDS]
        self._present = {record.ref: record for record in self._named}
        self._scanned = scanned
        self._listed_later = self._find_listed_later()
        self._made_again = self._find_made_again()
        self._same: dict[DirectoryId, DirectoryId] = {}
        self._names = self._by_name()

    def resolution(self) -> Resolution:
        settled = self._merge_directories()
        live = {
            key: record for key, group in self._names.items() if (record := self._truth(group)) is not None
        }
        return Resolution(live, self._garbage(live) if settled else [], self._same)

    def _merge_directories(self) -> bool:
        """Level by level: children meet once their parents are one. False: a loop, there is no last word."""
        for _ in range(_MERGE_ROUNDS):
            same = self._find_twins()
            if same == self._same:
                return True
            self._same = same
            self._names = self._by_name()
        return False

    def _find_listed_later(self) -> set[SlotRef]:
        """Records outdone by being listed, and aliases that were taken over."""
        outdone: set[SlotRef] = set()
        for record in self._named:
            for ref in listed(record):
                replaced = self._present.get(ref)
                if replaced is None:
                    continue
                if replaced.stamp < record.stamp:
                    outdone.add(ref)
                elif record.kind is Kind.ALIAS and ref == record.head:
                    outdone.add(record.ref)
        return outdone

    def _find_made_again(self) -> set[SlotRef]:
        """Records of directories of which a later one stands for the same directory, under whatever name."""
        latest: dict[ObjectId, Descriptor] = {}
        outdone: set[SlotRef] = set()
        for record in self._named:
            if not is_directory(record) or not self._stands(record):
                continue
            other = latest.setdefault(record.object_id, record)
            earlier, latest[record.object_id] = sorted((other, record), key=age)
            if earlier is not latest[record.object_id]:
                outdone.add(earlier.ref)
        return outdone

    def _stands(self, record: Descriptor) -> bool:
        return record.ref not in self._listed_later and self._base(record) is not None

    def _by_name(self) -> dict[NameKey, list[Descriptor]]:
        """All records of each name, latest first."""
        names: defaultdict[NameKey, list[Descriptor]] = defaultdict(list)
        for record in self._named:
            names[self._same.get(record.directory, record.directory), record.name].append(record)
        for group in names.values():
            group.sort(key=age, reverse=True)
        return dict(names)

    def _find_twins(self) -> dict[DirectoryId, DirectoryId]:
        same: dict[DirectoryId, DirectoryId] = {}
        for group in self._names.values():
            ids = [_as_directory(record.object_id) for record in self._directories(group)]
            if len(ids) > 1:
                smallest = min(ids)
                same |= {other: smallest for other in ids if other != smallest}
        return same

    def _directories(self, group: list[Descriptor]) -> list[Descriptor]:
        """The directories that a name stands for, one record each: all that are later than anything else."""
        found: dict[ObjectId, Descriptor] = {}
        for record in group:
            if not is_directory(record):
                break
            if record.ref not in self._made_again and self._stands(record):
                found.setdefault(record.object_id, record)
        return list(found.values())

    def _base(self, record: Descriptor) -> Descriptor | None:
        """The record that an alias (of an alias, …) stands for; the record itself if it is none. None: not there."""
        while record.kind is Kind.ALIAS:
            replaced = self._present.get(record.head) if record.head is not None else None
            if (
                replaced is None or replaced.stamp >= record.stamp
            ):  # falling stamps: this ends whatever media say
                return None
            record = replaced
        return record if record.kind is not Kind.TOMBSTONE else None

    def _truth(self, group: list[Descriptor]) -> Descriptor | None:
        latest = group[0]
        if is_directory(latest):
            return min(self._directories(group), key=lambda record: record.object_id, default=None)
        return latest if self._stands(latest) else None

    # ── garbage ──────────────────────────────────────────────────────────────────────────────────────────

    def _garbage(self, live: dict[NameKey, Descriptor]) -> list[Descriptor]:
        needed = self._needed(live)
        older_in_name: dict[SlotRef, Descriptor] = {}
        for group in self._names.values():
            older_in_name |= {later.ref: older for later, older in pairwise(group)}
        gone: set[SlotRef] = set()
        garbage = []
        # Oldest first: what a record outdoes is decided before the record itself.
        for record in sorted((r for r in self._named if r.ref not in needed), key=age):
            older = older_in_name.get(record.ref)
            if (older is None or older.ref in gone) and all(
                self._over(ref, record, gone) for ref in listed(record)
            ):
                gone.add(record.ref)
                garbage.append(record)
        return garbage

    def _needed(self, live: dict[NameKey, Descriptor]) -> set[SlotRef]:
        """Records that count: the live ones, every directory of a merged name, and what live aliases stand for."""
        counted = list(live.values())
        for key, record in live.items():
            if is_directory(record):
                counted += self._directories(self._names[key])
        needed: set[SlotRef] = set()
        for record in counted:
            step: Descriptor | None = record
            while step is not None and step.ref not in needed:
                needed.add(step.ref)
                step = (
                    self._present.get(step.head)
                    if step.kind is Kind.ALIAS and step.head is not None
                    else None
                )
        return needed

    def _over(self, ref: SlotRef, by: Descriptor, gone: Collection[SlotRef]) -> bool:
        """Whether `by` is not needed any more to keep the record in `ref` from coming back."""
        replaced = self._present.get(ref)
        if replaced is None:
            return self._scanned(ref)
        return replaced.stamp >= by.stamp or ref in gone


def age(record: Descriptor) -> tuple[Stamp, bool, ObjectId, SlotRef]:
    """The order in which records of one name outdo each other, the latest last."""
    # Equal stamps are an alias and the record that took it over, or two members' at one nanosecond. For the latter any
    # rule will do that is everybody's and does not depend on which other records are still there.
    return record.stamp, record.kind is not Kind.ALIAS, record.object_id, record.ref


def listed(record: Descriptor) -> tuple[SlotRef, ...]:
    """The slots whose records this one replaces."""
    if record.head is None:
        return record.supersedes
    return (record.head, *record.supersedes)


def is_directory(record: Descriptor) -> bool:
    """Whether a record is a directory's, or an alias of one."""
    return record.kind is Kind.DIRECTORY or (record.kind is Kind.ALIAS and stat.S_ISDIR(record.mode))


def _as_directory(object_id: ObjectId) -> DirectoryId:
    return DirectoryId(object_id)

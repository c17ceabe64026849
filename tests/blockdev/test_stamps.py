# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

import stat
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from blockdev.stamps import next_stamp, resolve, unclaimed
from blockdev.types import ROOT, Descriptor, Kind, SlotAddress, SlotRef

A, B = (ROOT, b"a"), (ROOT, b"b")


def record(slot, stamp, name=b"a", kind=Kind.HEAD, **fields):
    """A record in slot `slot`; its object id grows with that number unless told otherwise."""
    fields = {"object_id": (slot + 256).to_bytes(16, "big"), "directory": ROOT} | fields
    return Descriptor(kind, SlotAddress(0, 0, slot), 1, 1, 1, stamp=stamp, name=name, **fields)


def tombstone(slot, stamp, of, name=b"a", **fields):
    return record(slot, stamp, name, Kind.TOMBSTONE, head=of.ref, **fields)


def alias(slot, stamp, of, name=b"b", **fields):
    return record(slot, stamp, name, Kind.ALIAS, head=of.ref, object_id=of.object_id, mode=of.mode, **fields)


def directory(slot, stamp, name=b"a", parent=ROOT):
    return record(slot, stamp, name, Kind.DIRECTORY, directory=parent, mode=stat.S_IFDIR)


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_stamps_grow(wall, seen):
    stamp = next_stamp(wall, seen)
    assert stamp > seen
    assert stamp >= wall
    assert stamp in {wall, seen + 1}


class TestNames:
    def test_latest_is_the_truth(self):
        old, new = record(1, 10), record(2, 11, supersedes=(SlotRef(0, 0, 1, 1),))
        found = resolve([new, old])
        assert found.live == {A: new}
        assert found.garbage == [old]

    def test_names_are_apart(self):
        one, two, elsewhere = record(1, 10), record(2, 11, b"b"), record(3, 12, directory=b"d" * 16)
        found = resolve([one, two, elsewhere])
        assert found.live == {A: one, B: two, (b"d" * 16, b"a"): elsewhere}
        assert found.garbage == []

    def test_equal_stamps_have_one_winner(self):
        one, two = record(1, 10), record(2, 10)
        assert resolve([one, two]).live == resolve([two, one]).live

    def test_kinds_without_a_name_are_passed_over(self):
        body = replace(record(1, 0, b"", Kind.BODY), head=SlotRef(0, 0, 9, 1))
        assert resolve([body, record(2, 0, b"", Kind.FREE)]) == resolve([])

    def test_the_root_is_a_name_too(self):
        root = record(1, 1, b"", Kind.DIRECTORY, object_id=ROOT, directory=bytes(16))
        assert resolve([root]).live == {(bytes(16), b""): root}


class TestTombstone:
    def test_removes(self):
        head = record(1, 10)
        grave = tombstone(2, 11, head)
        found = resolve([head, grave])
        assert found.live == {}
        assert found.garbage == [head, grave]

    def test_is_garbage_once_its_object_has_gone(self):
        grave = tombstone(2, 11, record(1, 10))
        assert resolve([grave]).garbage == [grave]

    def test_stays_while_its_object_may_come_back(self):
        grave = tombstone(2, 11, record(1, 10))
        assert resolve([grave], lambda ref: ref.slot != 1).garbage == []

    def test_loses_against_a_later_change(self):
        head = record(1, 12)
        grave = tombstone(2, 11, head)
        found = resolve([head, grave])
        assert found.live == {A: head}
        assert found.garbage == [grave]

    def test_does_not_reach_an_object_that_moved_on(self):
        moved = record(1, 12, b"b")
        found = resolve([moved, tombstone(2, 11, moved)])
        assert found.live == {B: moved}

    def test_name_is_used_again(self):
        head = record(1, 10)
        grave = tombstone(2, 11, head)
        again = record(3, 12, supersedes=(head.ref, grave.ref))
        found = resolve([head, grave, again])
        assert found.live == {A: again}
        assert found.garbage == [head, grave]


class TestAlias:
    def test_renames(self):
        head = record(1, 10)
        there = alias(2, 11, head)
        found = resolve([head, there])
        assert found.live == {B: there}
        assert found.garbage == []  # the head's slot holds the object

    def test_is_nothing_without_its_object(self):
        there = alias(2, 11, record(1, 10))
        found = resolve([there])
        assert found.live == {}
        assert found.garbage == [there]

    def test_waits_for_a_missing_device(self):
        there = alias(2, 11, record(1, 10))
        found = resolve([there], lambda ref: ref.slot != 1)
        assert found.live == {}
        assert found.garbage == []

    def test_taken_over_by_the_owner(self):
        head = record(1, 11, b"b")
        there = alias(2, 11, head)
        found = resolve([there, head])
        assert found.live == {B: head}
        assert found.garbage == [there]

    def test_overtaken_by_the_owner(self):
        head = record(1, 12, b"c")
        found = resolve([alias(2, 11, head), head])
        assert found.live == {(ROOT, b"c"): head}

    def test_of_an_alias(self):
        head = record(1, 10)
        there = alias(2, 11, head)
        back = alias(3, 12, there, b"c", supersedes=(head.ref,))
        found = resolve([head, there, back])
        assert found.live == {(ROOT, b"c"): back}
        assert found.garbage == []

    def test_replaced(self):
        head = record(1, 10)
        there = alias(2, 11, head)
        new = record(3, 12, b"b", supersedes=(there.ref,))
        found = resolve([head, there, new])
        assert found.live == {B: new}
        assert found.garbage == [head, there]

    def test_replaces(self):
        mine, target = record(1, 10), record(2, 9, b"b")
        there = alias(3, 11, mine, supersedes=(target.ref,))
        found = resolve([mine, target, there])
        assert found.live == {B: there}
        assert found.garbage == [target]

    def test_the_old_name_is_free(self):
        head = record(1, 10)
        new = record(3, 12)
        found = resolve([head, alias(2, 11, head), new])
        assert found.live == {A: new, B: alias(2, 11, head)}

    def test_loops_end(self):
        one = alias(1, 5, record(2, 5), b"a")
        two = alias(2, 5, one, b"b")
        itself = alias(3, 5, record(3, 5), b"c")
        assert resolve([one, two, itself]).live == {}


class TestDirectories:
    def test_made_twice(self):
        one, two = directory(1, 11), directory(2, 10)
        child, other = (
            record(3, 12, b"x", directory=one.object_id),
            record(4, 12, b"y", directory=two.object_id),
        )
        found = resolve([one, two, child, other])
        assert found.same == {two.object_id: one.object_id}
        assert found.live == {A: one, (one.object_id, b"x"): child, (one.object_id, b"y"): other}
        assert found.garbage == []

    def test_children_of_equal_name_meet(self):
        one, two = directory(1, 11), directory(2, 10)
        old, new = record(3, 12, directory=one.object_id), record(4, 13, directory=two.object_id)
        found = resolve([one, two, old, new])
        assert found.live == {A: one, (one.object_id, b"a"): new}
        assert found.garbage == [old]

    def test_made_twice_at_two_levels(self):
        one, two = directory(1, 11), directory(2, 10)
        below, other = directory(4, 12, parent=one.object_id), directory(3, 12, parent=two.object_id)
        leaf = record(5, 13, b"x", directory=below.object_id)
        found = resolve([one, two, below, other, leaf])
        assert found.same == {two.object_id: one.object_id, below.object_id: other.object_id}
        assert found.live == {A: one, (one.object_id, b"a"): other, (other.object_id, b"x"): leaf}

    def test_removed_and_made_again_is_another(self):
        old, new = directory(1, 10), directory(3, 12)
        grave = tombstone(2, 11, old)
        found = resolve([old, grave, new])
        assert found.live == {A: new}
        assert found.same == {}
        assert found.garbage == [old, grave]

    def test_two_records_of_one(self):
        old, new = directory(1, 10), directory(2, 11)
        new = replace(new, object_id=old.object_id)
        found = resolve([old, new])
        assert found.live == {A: new}
        assert found.garbage == [old]

    def test_two_records_of_one_under_two_names(self):
        old, new = directory(1, 10), replace(directory(2, 11, b"b"), object_id=directory(1, 10).object_id)
        child = record(3, 12, b"x", directory=old.object_id)
        found = resolve([old, new, child])
        assert found.live == {B: new, (old.object_id, b"x"): child}
        assert found.garbage == [old]
        grave = tombstone(4, 13, new, b"grave")  # and then the older one counts, if nobody answers for it
        assert resolve([old, new, grave]).live == {A: old}

    def test_a_file_in_place_of_one(self):
        old, new = directory(1, 10), record(2, 11)
        assert resolve([old, new]).live == {A: new}
        old, new = record(1, 10), directory(2, 11)
        assert resolve([old, new]).live == {A: new}

    def test_renamed_by_another_member(self):
        home = directory(1, 10)
        there = alias(2, 11, home)
        found = resolve([home, there])
        assert found.live == {B: there}
        assert found.garbage == []

    def test_renamed_onto_one_made_elsewhere(self):
        home, rival = directory(1, 10), directory(3, 12, b"b")
        found = resolve([home, rival, alias(2, 11, home)])
        assert found.live == {B: alias(2, 11, home)}
        assert found.same == {rival.object_id: home.object_id}
        assert found.garbage == []

    def test_loops_end(self):
        one = directory(1, 1, parent=directory(2, 1).object_id)
        two = directory(2, 1, parent=directory(1, 1).object_id)
        three = directory(3, 1, parent=directory(2, 1).object_id)
        assert resolve([one, two, three]).live

    def test_nothing_is_thrown_away_while_merging_has_no_end(self):
        # The directory was moved into itself, beside another one: if they are one, a later record lies between them,
        # and if that is so they are two.
        home = directory(1, 1)
        inside = alias(2, 9, home, b"a", directory=home.object_id)
        beside = directory(4, 1, parent=home.object_id)
        between = record(5, 5, kind=Kind.TOMBSTONE, directory=beside.object_id)
        assert resolve([home, inside, beside, between]).garbage == []


@st.composite
def histories(draw):
    """Records that members could have left: each replaces, by listing them, some of what was there before."""
    made: list[Descriptor] = []
    for slot in range(1, draw(st.integers(1, 8)) + 1):
        kind = draw(st.sampled_from([Kind.HEAD, Kind.HEAD, Kind.DIRECTORY, Kind.TOMBSTONE, Kind.ALIAS]))
        parents = [r.object_id for r in made if r.kind is Kind.DIRECTORY]
        fields = {
            "directory": draw(st.sampled_from([ROOT, *parents])),
            "name": draw(st.sampled_from([b"a", b"b"])),
        }
        stamp = draw(st.integers(1, 12))
        if kind in {Kind.TOMBSTONE, Kind.ALIAS} and not made:
            kind = Kind.HEAD
        if kind in {Kind.TOMBSTONE, Kind.ALIAS}:
            of = draw(st.sampled_from(made))
            new = (tombstone if kind is Kind.TOMBSTONE else alias)(slot, stamp, of, **fields)
        elif kind is Kind.DIRECTORY:
            new = directory(slot, stamp, fields["name"], fields["directory"])
            again = [r.object_id for r in made if r.kind is Kind.DIRECTORY]
            new = replace(new, object_id=draw(st.sampled_from([new.object_id, *again])))
        else:
            new = record(slot, stamp, fields["name"], directory=fields["directory"])
        listed = draw(st.lists(st.sampled_from([r.ref for r in made]), max_size=2)) if made else []
        made.append(replace(new, supersedes=tuple(listed)))
    return made


class TestAlways:
    @given(histories(), st.randoms(use_true_random=False))
    def test_order_does_not_matter(self, records, random):
        shuffled = list(records)
        random.shuffle(shuffled)
        assert resolve(records) == resolve(shuffled)

    @given(histories(), st.data())
    def test_a_crash_while_cleaning_brings_nothing_back(self, records, data):
        found = resolve(records)
        gone = found.garbage[: data.draw(st.integers(0, len(found.garbage)))]
        rest = resolve([r for r in records if r not in gone])
        assert rest.live == found.live
        assert rest.same == found.same
        assert rest.garbage == found.garbage[len(gone) :]

    @given(histories())
    def test_what_is_live_is_no_garbage(self, records):
        found = resolve(records)
        assert not {r.ref for r in found.garbage} & {r.ref for r in found.live.values()}

    @given(histories(), st.data())
    def test_a_missing_device_brings_nothing_back(self, records, data):
        # No stamp comes twice, and each record lists everything older of its name, as members that see all do.
        records = [
            replace(r, stamp=stamp, directory=ROOT)
            for stamp, r in enumerate(records)
            if r.kind is not Kind.DIRECTORY
        ]
        records = [
            replace(r, supersedes=tuple(o.ref for o in records if o.name == r.name and o.stamp < r.stamp))
            for r in records
        ]
        missing = {r.ref for r in records if data.draw(st.booleans())}
        seen = [r for r in records if r.ref not in missing]
        garbage = resolve(seen, lambda ref: ref not in missing).garbage
        whole, cleaned = resolve(records), resolve([r for r in records if r not in garbage])
        assert cleaned.live.items() <= whole.live.items()
        # Whoever renames an object that is being replaced at the same time may lose it, but to a miss.
        lost = whole.live.keys() - cleaned.live.keys()
        assert all(whole.live[key].kind is Kind.ALIAS for key in lost)


class TestUnclaimed:
    HEAD = SlotRef(0, 0, 1, 1)
    LISTED, STRAY = (replace(record(slot, 0, b"", Kind.BODY), head=SlotRef(0, 0, 1, 1)) for slot in (2, 3))

    def test_not_listed(self):
        assert unclaimed([self.LISTED, self.STRAY], {self.HEAD: {self.LISTED.ref}}) == [self.STRAY]

    def test_head_has_gone(self):
        assert unclaimed([self.LISTED], {}) == [self.LISTED]

    def test_head_may_be_on_a_missing_device(self):
        assert unclaimed([self.LISTED], {}, lambda ref: False) == []

    def test_other_kinds(self):
        assert unclaimed([record(4, 1)], {}) == []

# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blockdev.changelog import (
    CHANGES_PER_PAGE,
    LOG_MAGIC,
    PINS_MAGIC,
    PINS_PER_PAGE,
    RING_PAGES_MAX,
    RING_PAGES_MIN,
    Change,
    ChangeKind,
    LogPage,
    PinPage,
    Ring,
    decode_log_page,
    decode_pin_page,
    encode_log_page,
    encode_pin_page,
    follow,
    newest_page,
    pick_pin_page,
)
from blockdev.errors import RecordTooLarge, UnknownVersion
from blockdev.layout.page import BODY_OFFSET, seal
from blockdev.types import PAGE, SlotRef
from tests.blockdev.records import damage, damaged, log_pages, pin_pages

POOL, MEMBER, OTHER = (UUID(int=0x4B << 120 | n) for n in range(3))
CHANGE = Change(ChangeKind.PUBLISH, SlotRef(1, 2, 3, 4), 5, 6, b"o" * 16)
LOG = LogPage(MEMBER, 7, 1, 1_000_000, (CHANGE,))
PINS = PinPage(MEMBER, 7, 2, 4, (b"o" * 16, b"p" * 16))


class TestLogPage:
    @given(log_pages)
    def test_round_trip(self, page):
        encoded = encode_log_page(POOL, page)
        assert len(encoded) == PAGE
        assert decode_log_page(POOL, memoryview(encoded)) == page

    def test_full(self):
        full = replace(LOG, changes=(CHANGE,) * CHANGES_PER_PAGE)
        assert decode_log_page(POOL, encode_log_page(POOL, full)) == full
        with pytest.raises(RecordTooLarge):
            encode_log_page(POOL, replace(LOG, changes=(CHANGE,) * (CHANGES_PER_PAGE + 1)))

    @given(log_pages, damage)
    def test_damaged(self, page, how):
        encoded = encode_log_page(POOL, page)
        broken = damaged(encoded, how)
        assume(broken != encoded)
        assert decode_log_page(POOL, broken) is None

    @given(st.binary(max_size=300) | st.binary(min_size=PAGE, max_size=PAGE))
    def test_random(self, data):
        assert decode_log_page(POOL, data) is None

    @given(st.binary(max_size=300), st.integers(0, 2))
    def test_random_bodies(self, body, count):
        assert decode_log_page(POOL, seal(LOG_MAGIC, 1, POOL, body)) is None
        body = body.ljust(40, b"\1")
        body = (
            body[:20] + count.to_bytes(4, "little") + body[24 : 40 + 64 * count].ljust(16 + 64 * count, b"\2")
        )
        found = decode_log_page(POOL, seal(LOG_MAGIC, 1, POOL, body))
        assert found is None or decode_log_page(POOL, encode_log_page(POOL, found)) == found

    @pytest.mark.parametrize("kind", [0, 7, 255])
    def test_unknown_kind(self, kind):
        body = bytearray(encode_log_page(POOL, LOG)[BODY_OFFSET : BODY_OFFSET + 40 + 64])
        body[40] = kind
        assert decode_log_page(POOL, seal(LOG_MAGIC, 1, POOL, bytes(body))) is None

    def test_of_another_pool_or_version(self):
        encoded = encode_log_page(POOL, LOG)
        assert decode_log_page(OTHER, encoded) is None
        with pytest.raises(UnknownVersion):
            decode_log_page(POOL, seal(LOG_MAGIC, 2, POOL, encoded[BODY_OFFSET : BODY_OFFSET + 104]))

    def test_refused(self):
        with pytest.raises(RecordTooLarge):
            encode_log_page(POOL, replace(LOG, sequence=-1))
        with pytest.raises(ValueError, match="16 bytes"):
            encode_log_page(POOL, replace(LOG, changes=(CHANGE._replace(object_id=b"short"),)))


class TestPinPage:
    @given(pin_pages)
    def test_round_trip(self, page):
        encoded = encode_pin_page(POOL, page)
        assert len(encoded) == PAGE
        assert decode_pin_page(POOL, memoryview(encoded)) == page

    def test_full(self):
        full = replace(PINS, objects=(b"o" * 16,) * PINS_PER_PAGE)
        assert decode_pin_page(POOL, encode_pin_page(POOL, full)) == full
        with pytest.raises(RecordTooLarge):
            encode_pin_page(POOL, replace(PINS, objects=(b"o" * 16,) * (PINS_PER_PAGE + 1)))

    @given(pin_pages, damage)
    def test_damaged(self, page, how):
        encoded = encode_pin_page(POOL, page)
        broken = damaged(encoded, how)
        assume(broken != encoded)
        assert decode_pin_page(POOL, broken) is None

    @given(st.binary(max_size=300))
    def test_random_bodies(self, body):
        found = decode_pin_page(POOL, seal(PINS_MAGIC, 1, POOL, body))
        assert found is None or decode_pin_page(POOL, encode_pin_page(POOL, found)) == found

    def test_refused(self):
        with pytest.raises(RecordTooLarge):
            encode_pin_page(POOL, replace(PINS, part=2**16))
        with pytest.raises(ValueError, match="16 bytes"):
            encode_pin_page(POOL, replace(PINS, objects=(b"short",)))

    def test_pick(self):
        even, odd = (encode_pin_page(POOL, replace(PINS, sequence=n)) for n in (4, 5))
        assert pick_pin_page(POOL, even + odd, MEMBER, 7, 2).sequence == 5
        later = encode_pin_page(POOL, replace(PINS, sequence=6))
        assert pick_pin_page(POOL, later + odd, MEMBER, 7, 2).sequence == 6
        assert pick_pin_page(POOL, odd + even, MEMBER, 7, 2) is None
        for member, epoch, part in ((OTHER, 7, 2), (MEMBER, 8, 2), (MEMBER, 7, 1)):
            assert pick_pin_page(POOL, even + odd, member, epoch, part) is None


class TestRing:
    @given(st.integers(1, 2000), st.integers(1, 2**63))
    def test_pages_of_one_round_do_not_overlap(self, pages, newest):
        ring = Ring(8192, pages)
        positions = [ring.position(sequence) for sequence in range(ring.oldest(newest), newest + 1)]
        assert len(set(positions)) == len(positions) <= pages
        assert all(8192 <= p <= 8192 + (pages - 1) * PAGE and p % PAGE == 0 for p in positions)

    def test_sizes(self):
        assert (RING_PAGES_MIN, RING_PAGES_MAX) == (256, 1024)

    def test_what_can_be_replayed(self):
        ring = Ring(0, 4)
        assert ring.oldest(3) == 1
        assert ring.oldest(10) == 7
        assert ring.replayable(seen=6, newest=10)
        assert not ring.replayable(seen=5, newest=10)
        assert ring.replayable(seen=0, newest=0)


def pages(*sequences: int) -> list[LogPage]:
    return [replace(LOG, sequence=sequence) for sequence in sequences]


class TestFollow:
    LAST = replace(LOG, sequence=10)

    @pytest.mark.parametrize(
        "window, applied, rescan",
        [
            pytest.param([None, None], 0, False, id="nothing written yet"),
            pytest.param(pages(11, 12), 2, False, id="next pages"),
            pytest.param([*pages(11), None], 1, False, id="next page, then one being written"),
            pytest.param([*pages(11, 4, 5)], 1, False, id="then what was there a round ago"),
            pytest.param([None, *pages(12)], 0, True, id="one is damaged"),
            pytest.param([*pages(11, 12), None, *pages(14)], 2, True, id="one is damaged later"),
            pytest.param(pages(75, 76), 0, True, id="overtaken by a round"),
            pytest.param([replace(LOG, epoch=8, sequence=11)], 0, True, id="new epoch"),
            pytest.param([replace(LOG, epoch=6, sequence=11)], 0, False, id="old epoch"),
            pytest.param([replace(LOG, member=OTHER, sequence=11)], 0, True, id="another member"),
        ],
    )
    def test_follow(self, window, applied, rescan):
        found = follow(self.LAST, window)
        assert [page.sequence for page in found.pages] == list(range(11, 11 + applied))
        assert found.rescan is rescan

    @given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 60), st.data())
    def test_never_skips_a_page(self, size, applied, newest, data):
        """Whatever the ring holds: what is applied is what comes next, and nothing is passed over in silence."""
        assume(newest >= applied >= 1)
        ring = Ring(0, size)
        content: list[LogPage | None] = [None] * size
        for sequence in range(1, newest + 1):
            content[sequence % size] = replace(LOG, sequence=sequence)
        for lost in data.draw(st.sets(st.integers(0, size - 1), max_size=2)):
            content[lost] = None
        window = [content[ring.position(applied + n) // PAGE] for n in range(1, size + 1)]
        found = follow(replace(LOG, sequence=applied), window)
        got = [page.sequence for page in found.pages]
        assert got == list(range(applied + 1, applied + 1 + len(got)))
        later = [page for page in window if page is not None and page.sequence > applied + len(got)]
        assert found.rescan is bool(later)


def test_newest_page():
    ring = [replace(LOG, sequence=8), replace(LOG, sequence=5), None, replace(LOG, sequence=7)]
    assert newest_page(ring, MEMBER, 7) == ring[0]
    assert newest_page(ring, OTHER, 7) is None
    assert newest_page(ring, MEMBER, 8) is None
    misplaced = [*ring[:2], replace(LOG, sequence=99), ring[3]]
    assert newest_page(misplaced, MEMBER, 7) == ring[0]

"""What is recorded of a mount tells no names and no contents, is bounded, and says what it left out."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from blockdev.types import ROOT
from kvfs.predecessors import NONE, block_id
from kvfs.recording import Recorder, Recording
from tests.conftest import ExpectLog
from tests.kvfs.test_frames import an_object

NAME = b"0123456789abcdef0123456789abcdef_llama_%d_2.bin"
RECORD = replace(an_object(1), name=NAME % 0, size=4096, inline=b"secret contents", directory=ROOT)


def recorder(*recordings: Recording) -> Recorder:
    made = Recorder()
    made.recordings += recordings
    return made


def still() -> float:
    return 5.0


def all_events(to: Recorder, thread: int = 77_777) -> None:
    to.looked_up(ROOT, RECORD.name, thread, RECORD.size)
    to.looked_up(ROOT, b"missing name", thread, None)
    to.opened(RECORD, thread, hit=True)
    to.published(replace(RECORD, predecessor=block_id(b"earlier")), thread)
    to.removed(RECORD)
    to.gone(RECORD)


def test_no_name_no_content_no_thread_and_no_digest_that_others_could_make() -> None:
    recording = Recording(still)
    all_events(recorder(recording))
    text = json.dumps(recording.take(100))
    secrets = [RECORD.name, b"missing", b"earlier", b"secret", b"llama", b"0123456789abcdef", b"77777"]
    digests = [block_id(name).hex()[:16].encode() for name in (RECORD.name, b"earlier", b"missing name")]
    assert not [one for one in secrets + digests if one in text.encode()]


def test_equal_names_have_equal_hashes_within_a_recording_only() -> None:
    first, second = Recording(still), Recording(still)
    to = recorder(first, second)
    all_events(to)
    all_events(to)
    names = [[event["name"] for event in recording.take(100)] for recording in (first, second)]
    assert names[0][:6] == names[0][6:]
    assert len(set(names[0])) == 2
    assert not set(names[0]) & set(names[1])


def test_the_files_of_a_block_and_what_came_before_it_can_be_found() -> None:
    recording = Recording(still)
    to = recorder(recording)
    to.published(replace(RECORD, predecessor=NONE), 1)
    to.published(replace(RECORD, name=NAME % 1, predecessor=NONE), 1)
    to.published(replace(RECORD, name=b"next", predecessor=block_id(RECORD.name)), 1)
    one, half, following = recording.take(100)
    assert one["block"] == half["block"] == following["before"]
    assert one["name"] != half["name"]
    assert one["before"] is None
    assert [one["kind"], following["kind"]] == ["hash", "other"]


@given(st.integers(1, 8), st.lists(st.one_of(st.just("event"), st.integers(1, 10)), max_size=60))
def test_every_event_is_taken_or_counted_in_a_gap(limit: int, steps: list[str | int]) -> None:
    recording = Recording(still, limit)
    to = recorder(recording)
    told, taken = 0, []
    for step in steps:
        if isinstance(step, int):
            taken += recording.take(step)
        else:
            to.gone(RECORD)
            told += 1
    taken += recording.take(2 * limit)  # gaps wait beside events
    lost = sum(event["lost"] for event in taken if event["event"] == "gap")
    assert sum(event["event"] == "gone" for event in taken) == recording.recorded
    assert recording.recorded + lost == told
    assert lost == recording.lost


def test_a_gap_stands_where_events_are_missing() -> None:
    recording = Recording(still, 2)
    to = recorder(recording)
    sizes = iter(range(100))

    def happen(times: int) -> None:
        for _ in range(times):
            to.gone(replace(RECORD, size=next(sizes)))

    happen(4)
    taken = recording.take(1)
    happen(1)
    taken += recording.take(9)
    assert [event.get("size", event["event"]) for event in taken] == [0, 1, "gap", 4]
    assert (taken[2]["lost"], recording.lost) == (2, 2)


def test_a_recording_that_fails_fails_nobody(expect_log: ExpectLog) -> None:
    expect_log("a recording failed")

    def broken() -> float:
        raise RuntimeError

    recording = Recording(still)
    to = recorder(recording)
    recording._clock = broken
    to.gone(RECORD)
    to.gone(RECORD)
    assert to.recordings == []

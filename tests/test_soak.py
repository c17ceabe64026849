"""The soak tells right from wrong, lost from evicted and flat from growing; else hours of it would prove nothing."""

from __future__ import annotations

import json
import mmap
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.lib.soak.calls import STALL_SECONDS, When, too_long, when_of
from scripts.lib.soak.contents import HEADER_SIZE, Allowed, Subject, judge
from scripts.lib.soak.damage import Damager
from scripts.lib.soak.departures import UNTOLD, Departures, Miss, Reason
from scripts.lib.soak.ledger import RECOVERING_NS, VISIBLE_NS, Ledger, Stored
from scripts.lib.soak.samples import MIB, Allowance, Trend, course
from scripts.lib.soak.universe import Engine, File, files
from scripts.lib.soak.worker import Site, Thread

ROOT = Path(__file__).parents[1]
PAGE = mmap.PAGESIZE
WHOLE = Subject("whole", 50_007)
SLAB = Subject("slab", 8 * PAGE + 5, parts=4)


# ---- contents -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [WHOLE, SLAB], ids=["whole", "slab"])
def test_every_version_is_recognised(subject: Subject) -> None:
    versions = range(subject.first_version, subject.first_version + 9)
    contents = [subject.content(version) for version in versions]
    assert len(set(contents)) == len(contents)
    assert {len(content) for content in contents} == {subject.size}
    assert [judge(subject, content).version for content in contents] == list(versions)


@pytest.mark.parametrize("subject", [WHOLE, SLAB], ids=["whole", "slab"])
@pytest.mark.parametrize("at", [0, 9, 25, 33, HEADER_SIZE, -2 * PAGE, -1])
def test_one_flipped_bit_is_seen(subject: Subject, at: int) -> None:
    content = bytearray(subject.content(7))
    content[at] ^= 0x10
    assert judge(subject, bytes(content)).version is None


@pytest.mark.parametrize("size", [0, 10, PAGE, SLAB.size - 1, SLAB.size + 1])
def test_another_length_is_wrong(size: int) -> None:
    content = (SLAB.content(5) + b"more")[:size]
    assert judge(SLAB, content).complaint == f"{size} bytes of {SLAB.size}"


def test_bytes_of_another_file_or_part_are_wrong() -> None:
    assert judge(WHOLE, Subject("other", WHOLE.size).content(1)).complaint == "part 0 is another file's"
    one, two = (SLAB.part(part, 9) for part in (0, 1))
    swapped = two + one + SLAB.content(9)[len(one + two) :]
    assert judge(SLAB, swapped).complaint == "part 1 in the place of part 0"


def test_two_versions_are_told_from_one() -> None:
    """A slab of version 8 with a part of version 9, and without one that 8 has written: neither 8 nor 9."""
    old, older = SLAB.content(8), SLAB.content(7)
    begin, end = SLAB.span(0)
    torn = older[begin:end] + old[end : SLAB.span(1)[0]] + SLAB.part(1, 9) + old[SLAB.span(1)[1] :]
    assert judge(SLAB, torn).complaint == "mixed: part 0 is of version 4 in version 9"


def test_half_of_a_part_is_wrong() -> None:
    content = WHOLE.content(2)[: WHOLE.size // 2] + WHOLE.content(1)[WHOLE.size // 2 :]
    assert "wrong bytes in version 2, from 250" in judge(WHOLE, content).complaint


@pytest.mark.parametrize("new", [6, 7, 9, 30])
def test_changing_the_parts_that_differ_makes_the_version(new: int) -> None:
    content = bytearray(SLAB.content(5))
    for part in SLAB.changed(5, new):
        begin, end = SLAB.span(part)
        content[begin:end] = SLAB.part(part, new)
    assert judge(SLAB, bytes(content)).version == new
    assert len(SLAB.changed(5, new)) == min(new - 5, SLAB.parts)


@pytest.mark.parametrize(
    "version, complaint",
    [(4, "stale"), (5, ""), (7, ""), (8, "version 8 before it was written")],
)
def test_versions_are_held_against_what_is_allowed(version: int, complaint: str) -> None:
    found = Allowed(least=5, most=7).complaint(version)
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)


def test_the_files_are_as_many_as_the_working_set_says() -> None:
    universe = files(1 << 30)
    assert universe == files(1 << 30)
    assert [file.number for file in universe] == list(range(len(universe)))
    assert len({file.path for file in universe}) == len(universe)
    assert {file.engine for file in universe} == set(Engine)
    assert sum(file.subject.size for file in universe) == pytest.approx(1 << 30, rel=0.05)


# ---- the ledger -----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the time of the ledger, in nanoseconds."""

    def set_time(at: int) -> None:
        monkeypatch.setattr("scripts.lib.soak.ledger.now", lambda: at)

    return set_time


@pytest.fixture
def both(tmp_path: Path) -> tuple[Ledger, Ledger]:
    """The ledger, as two processes have it."""
    one, other = (Ledger(tmp_path / "ledger", members=2, files=3) for _ in range(2))
    return one, other


def test_a_paused_member_is_not_entered(both: tuple[Ledger, Ledger]) -> None:
    driver, worker = both
    assert worker.enter(1, 0)
    driver.pause(1, on=True)
    assert not driver.is_idle(1)
    worker.leave(1, 0)
    assert driver.is_idle(1)
    assert not worker.enter(1, 0)
    assert driver.is_idle(1)
    driver.pause(1, on=False)
    driver.pause_all(on=True)
    assert not worker.enter(0, 3)


def test_others_may_be_late_and_oneself_may_not(
    both: tuple[Ledger, Ledger], clock: Callable[[int], None]
) -> None:
    writer, reader = both
    clock(100 * VISIBLE_NS)
    writer.begin(2, 5)
    assert reader.allowed(2, 0) == Allowed(0, 5)
    writer.acknowledge(2, 5, member=0)
    assert writer.allowed_from(2, member=0) == 5
    assert reader.allowed_from(2, member=1) == 0
    clock(101 * VISIBLE_NS + 1)
    assert reader.allowed_from(2, member=1) == 5
    writer.disturb(1)
    assert reader.allowed_from(2, member=1) == 0


def test_what_was_removed_may_not_come_back(
    both: tuple[Ledger, Ledger], clock: Callable[[int], None]
) -> None:
    writer, reader = both
    clock(100 * VISIBLE_NS)
    writer.begin(0, 5)
    writer.acknowledge(0, 5, member=0)
    writer.removing(0)
    writer.removed(0)
    clock(102 * VISIBLE_NS)
    assert reader.allowed_from(0, member=1) == 6
    assert reader.stored(0).at == 0


def test_a_file_is_gone_once(both: tuple[Ledger, Ledger], clock: Callable[[int], None]) -> None:
    one, other = both
    assert not one.is_gone(1, one.stored(1))
    clock(10)
    one.acknowledge(1, 1, member=1)
    stored = other.stored(1)
    assert stored == Stored(10, 1)
    assert other.is_gone(1, stored)
    assert not one.is_gone(1, stored)
    one.acknowledge(1, 1, member=0)
    clock(20)
    one.acknowledge(1, 1, member=0)
    assert not other.is_gone(1, Stored(10, 0))


def test_a_disturbance_lasts_until_the_member_has_recovered(
    both: tuple[Ledger, Ledger], clock: Callable[[int], None]
) -> None:
    driver, worker = both
    begun, ended = 10 * RECOVERING_NS, 11 * RECOVERING_NS
    assert worker.disturbances(0, begun) == []
    clock(begun)
    driver.disturb(1)
    assert worker.disturbances(0, begun - 1) == []
    assert worker.disturbances(0, begun) == [1]
    clock(ended)
    driver.calm(1)
    assert worker.disturbances(ended + RECOVERING_NS, ended + RECOVERING_NS) == [1]
    assert worker.disturbances(ended + RECOVERING_NS + 1, ended + RECOVERING_NS + 1) == []


@pytest.mark.parametrize(
    "disturbed, when, seconds, stalled",
    [
        ([], When.CALM, STALL_SECONDS - 0.1, False),
        ([], When.CALM, STALL_SECONDS + 0.1, True),
        ([1], When.OTHERS, STALL_SECONDS + 0.1, False),
        ([1], When.OTHERS, 30.0, True),
        ([0, 1], When.OWN, 30.0, False),
    ],
)
def test_stalls_are_judged_by_who_was_disturbed(
    disturbed: list[int], when: When, seconds: float, stalled: bool
) -> None:
    assert when_of(disturbed, member=0) is when
    assert too_long(seconds, when) is stalled


# ---- a worker's thread, on a plain directory, which keeps what is put there ------------------------------------


def first_said(
    tmp_path: Path, file: File, prepare: Callable[[Ledger, Path], None]
) -> tuple[str, dict[str, object]]:
    """What a thread that uses just this file says first."""
    ledger = Ledger(tmp_path / "ledger", members=2, files=file.number + 1)
    root = tmp_path / "root"
    path = root / file.path
    path.parent.mkdir(parents=True)
    prepare(ledger, path)
    said: list[tuple[str, dict[str, object]]] = []

    def say(what: str, **fields: object) -> None:
        said.append((what, fields))
        ledger.end()

    Thread(Site(ledger, 0, root, {engine: [file] for engine in Engine}, {}, say), 0, "seed").run()
    return said[0]


@pytest.mark.parametrize("engine", Engine)
def test_a_worker_finds_wrong_bytes(tmp_path: Path, engine: Engine) -> None:
    file = next(file for file in files(1 << 26) if file.engine is engine)

    def prepare(ledger: Ledger, path: Path) -> None:
        content = bytearray(file.subject.content(file.subject.first_version))
        content[file.subject.size // 2] ^= 1
        path.write_bytes(content)
        ledger.begin(file.number, file.subject.first_version)

    what, finding = first_said(tmp_path, file, prepare)
    assert (what, finding["kind"], finding["name"]) == ("finding", "wrong bytes", file.subject.name)


def test_a_worker_finds_what_is_stale(tmp_path: Path) -> None:
    file = next(file for file in files(1 << 26) if file.engine is Engine.REPLACED)

    def prepare(ledger: Ledger, path: Path) -> None:
        path.write_bytes(file.subject.content(6))
        ledger.begin(file.number, 7)
        ledger.acknowledge(file.number, 7, member=0)

    what, finding = first_said(tmp_path, file, prepare)
    assert (what, finding["kind"]) == ("finding", "stale")
    assert finding["text"] == "stale: version 6 after 7 was stored"


def test_a_worker_tells_of_what_is_gone_at_once(tmp_path: Path) -> None:
    file = files(1 << 26)[0]
    what, told = first_said(tmp_path, file, lambda ledger, _: ledger.acknowledge(file.number, 1, member=0))
    assert (what, told["name"], told["by"], told["on"]) == ("gone", file.subject.name, 0, 0)


def test_a_worker_does_not_store_below_a_mount_that_is_gone(tmp_path: Path) -> None:
    file = files(1 << 26)[0]
    what, finding = first_said(tmp_path, file, lambda *_: None)
    assert (what, finding["kind"]) == ("finding", "error")
    assert "the mount is gone" in str(finding["text"])
    assert not (tmp_path / "root" / file.path).exists()


# ---- evicted or lost ------------------------------------------------------------------------------------------


def departures(*counts: int) -> Departures:
    """With a sample every 10 ns, of one member."""
    known = Departures()
    for number, count in enumerate(counts):
        known.sample(number * 10, {0: count}, all_answered=True)
    return known


def miss(stored_at: int, missed_at: int) -> Miss:
    return Miss("file", 0, 0, stored_at, missed_at)


def test_what_is_gone_while_nothing_departed_is_lost() -> None:
    assert departures(3, 3, 3, 3, 3).reason(miss(15, 25)) is Reason.LOST


@pytest.mark.parametrize("counts", [(3, 3, 3, 4), (3, 4, 4, 4)], ids=["after", "before, maybe"])
def test_what_may_have_departed_is_evicted(counts: tuple[int, ...]) -> None:
    """A sample is taken between its time and the next one's, so its neighbours bound it."""
    assert departures(*counts).reason(miss(15, 25)) is Reason.EVICTED


def test_what_departed_long_before_is_no_excuse() -> None:
    assert departures(3, 9, 9, 9, 9, 9).reason(miss(35, 45)) is Reason.LOST


def test_a_miss_is_judged_when_all_have_been_asked_after_it() -> None:
    known = departures(3, 3, 3)
    assert not known.covers(25)
    known.sample(30, {}, all_answered=False)
    assert not known.covers(25)
    known.sample(40, {0: 4}, all_answered=True)
    assert known.covers(25)
    assert known.reason(miss(15, 25)) is Reason.EVICTED


def test_damage_and_ends_excuse() -> None:
    known = departures(3, 3, 3, 3)
    known.ended(0, 20)
    assert known.reason(miss(15, 25)) is Reason.UNKNOWN
    assert known.reason(miss(21, 25)) is Reason.LOST
    known.damaged("file", 5)
    assert known.reason(miss(21, 25)) is Reason.DAMAGED


def test_no_more_may_be_gone_than_departed_over_all_lives() -> None:
    known = departures(3, 10)
    known.sample(20, {1: 5}, all_answered=True)
    assert (known.total, known.unexplained(15), known.unexplained(16)) == (15, 0, 1)
    known.ended(1, 25)
    known.sample(30, {1: 1}, all_answered=True)
    assert (known.total, known.unexplained(16 + UNTOLD), known.unexplained(17 + UNTOLD)) == (16, 0, 1)


# ---- flat or growing ------------------------------------------------------------------------------------------

LITTLE = Allowance(some=2.0, part=0.1)


@pytest.mark.parametrize(
    "values, trend",
    [
        ([100.0] * 60, Trend.FLAT),
        ([*range(40), *[40.0] * 60], Trend.FLAT),  # only while it warms up
        ([100.0 + number % 7 for number in range(60)], Trend.FLAT),
        ([100.0] * 59 + [1000.0], Trend.FLAT),  # once
        ([100.0 + number for number in range(60)], Trend.GROWING),
        ([float(number % 10 + number) for number in range(60)], Trend.GROWING),
        ([100.0 + number for number in range(10)], Trend.TOO_SHORT),
    ],
)
def test_growth_is_told_from_warming_up_and_noise(values: list[float], trend: Trend) -> None:
    times = [10.0 * number for number in range(len(values))]
    assert course(times, values, LITTLE).trend is trend


def test_many_samples_of_a_short_time_tell_nothing() -> None:
    assert course([number / 100 for number in range(90)], [float(MIB)] * 90, LITTLE).trend is Trend.TOO_SHORT


# ---- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_damage_hits_one_byte_of_a_payload_and_names_it(tmp_path: Path, seed: int) -> None:
    device, extent = tmp_path / "device", 4 * PAGE
    subject = Subject("hit", 6 * PAGE)
    content = subject.content(1)
    before = bytearray(random.Random(seed).randbytes(2 << 20))
    at, rest = 100 * PAGE, 300 * PAGE  # the second extent lies elsewhere
    before[at : at + extent] = content[:extent]
    before[rest : rest + 2 * PAGE] = content[extent:]
    device.write_bytes(before)
    hit = Damager([device], [subject], extent, random.Random(seed)).flip()
    assert hit is not None
    after = device.read_bytes()
    assert [number for number in range(len(before)) if before[number] != after[number]] == [hit.offset]
    assert at <= hit.offset < at + extent
    assert hit.name == "hit"


def test_nothing_is_damaged_where_nothing_is_known(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(Subject("another pool's", 2 << 20).content(1))
    assert Damager([device], [WHOLE], 4 * PAGE, random.Random(0)).flip() is None
    assert device.read_bytes() == Subject("another pool's", 2 << 20).content(1)


# ---- for real -------------------------------------------------------------------------------------------------


def soak(folder: Path, *options: str) -> subprocess.Popen[str]:
    small = ("--size", "512MiB", "--memory", "64MiB", "--folder", str(folder))
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.lib.soak", *small, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def assert_nothing_is_left(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.fuse
@pytest.mark.timeout(300)
def test_a_short_soak_finds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    process = soak(tmp_path, "--minutes", "0.4", "--members", "2", "--seed", "3")
    output, errors = process.communicate()
    report = json.loads(output)
    assert report["findings"]["first"] == [], errors
    assert process.returncode == 0
    assert report["ok"] is True
    assert report["work"]["hits"] > 0
    assert report["work"]["stores"] > 0
    assert sum(report["troubles"].values()) > 0
    assert {process["member"] for process in report["processes"]} == {0, 1}
    assert_nothing_is_left(tmp_path)


@pytest.mark.fuse
@pytest.mark.timeout(300)
def test_an_interrupted_soak_leaves_nothing(tmp_path: Path) -> None:
    process = soak(tmp_path, "--minutes", "5", "--members", "2", "--seed", "3", "--keep")
    mounts = select.poll()
    with Path("/proc/self/mountinfo").open() as table:
        mounts.register(table, select.POLLERR | select.POLLPRI)
        while str(tmp_path) not in Path("/proc/self/mountinfo").read_text():
            mounts.poll(1000)
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert (process.returncode, output, errors) == (130, "", "")
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        (("--size", "1MiB"), "--size must be at least 256MiB"),
        (("--size", "much"), "'much' is not a size"),
        (("--members", "0"), "--members must be from 1 to 16"),
        (("--minutes", "0"), "--minutes and --hours must be more than 0"),
        (("--folder", "/nowhere"), "/nowhere is no directory"),
        (("--size", "1PiB"), "has less than"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    process = soak(tmp_path, *options)
    output, errors = process.communicate()
    assert (process.returncode, output) == (2, "")
    assert message in errors
    assert_nothing_is_left(tmp_path)

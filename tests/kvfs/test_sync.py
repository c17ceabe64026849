"""The Cache API for threads, over a pool of files: what is asked from any thread is done, and nothing is left behind."""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kvfs as package
from blockdev.types import KIB, MIB
from examples import layers
from kvfs import Block, Namespace, sync
from kvfs.config import load_config
from kvfs.errors import (
    BadAttention,
    BadBuffer,
    BadKey,
    CacheClosed,
    ConfigError,
    NoObject,
    UnknownPool,
    WrongNamespace,
)
from tests.kvfs.conftest import Kvfs

OURS = Namespace("model", rank=1)
SIZE = 3 * MIB


@contextmanager
def opened(kvfs: Kvfs, **options: Any) -> Iterator[sync.BlockingCache]:
    values: dict[str, Any] = {"namespace": OURS, "memory": 16 * MIB, "state": kvfs.state.root} | options
    with sync.open_cache("hot", **values) as cache:
        yield cache


@pytest.fixture
def pool(kvfs: Kvfs) -> Kvfs:
    kvfs.make_pool()
    return kvfs


def noise(seed: int, size: int = SIZE) -> bytes:
    return Random(seed).randbytes(size)


def test_what_only_a_gpu_over_rdma_can_have_is_refused(pool: Kvfs) -> None:
    with opened(pool) as cache:
        with pytest.raises(BadBuffer, match="only memory of a GPU"), cache.rechecked(bytearray(SIZE)):
            pass
        cache.put(b"still", b"there")
        assert cache.lookup([b"still"]) == [5]


def test_threads_put_and_get_at_once(pool: Kvfs) -> None:
    def work(number: int) -> None:
        key, into = b"%d" % number, bytearray(SIZE)
        cache.put(key, noise(number))
        assert cache.get_into(key, into) == SIZE
        assert into == noise(number)

    with opened(pool) as cache:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(12)))
        assert cache.lookup([b"%d" % number for number in range(13)]) == [SIZE] * 12 + [None]
        assert cache.statistics().puts == 12


def test_what_was_put_is_there_when_it_is_opened_again(pool: Kvfs) -> None:
    with opened(pool) as cache:
        cache.put("/engine/a.bin", noise(1))
    config = load_config(pool.state.folder("hot").config)
    with sync.open_cache(config, state=pool.state.root, memory=16 * MIB) as cache:
        into = bytearray(SIZE)
        assert cache.get_into("engine/a.bin", into) == SIZE
        assert into == noise(1)
    assert pool.ok("ls", "-H", "-o", "name", "hot:/engine").rows == [["a.bin"]]


def test_a_stream_in_a_thread(pool: Kvfs) -> None:
    with opened(pool, buffers=4 * SIZE) as cache, cache.lease(3 * SIZE) as lease:
        for number in range(3):
            cache.put(b"%d" % number, noise(number))
        parts = [lease.view[at : at + SIZE] for at in range(0, 3 * SIZE, SIZE)]
        keys = [b"2", b"missing", b"0", b"1"]
        pairs = list(zip(keys, [*parts[:1], bytearray(SIZE), *parts[1:]], strict=True))
        for method in (cache.stream, cache.prefetch_into):
            with method(pairs, deadline=60.0) as arrivals:
                found = {got.index: got for got in arrivals}
            assert [found[index].length for index in range(4)] == [SIZE, 0, SIZE, SIZE]
            assert lease.view == noise(2) + noise(0) + noise(1)
        with cache.stream(pairs) as arrivals:
            next(arrivals)  # and leaves
            arrivals.cancel()
        with pytest.raises(ValueError, match="own error"), cache.stream(pairs):
            raise ValueError("own error")
        assert cache.statistics().stream.running == 0
        with cache.layers([pairs, pairs[:1]]) as layers:
            assert [got.index for got in layers.ready(1)] == [len(pairs)]
            assert [got.index for got in layers.ready(0)] == [*range(len(pairs))]
            assert len(layers) == 2
        assert cache.begin("request", keys) == 1  # the second one is missing
        cache.end("request", "stop")


def test_the_rest_of_it(pool: Kvfs) -> None:
    with opened(pool) as cache:
        cache.put(b"x", b"small")
        with cache.pin(b"x") as pin:
            assert pin.size == 5
        cache.hint([b"x"])
        assert cache.prefetch([b"x"]) == 0, "what is in its record needs no frame"
        assert cache.remove(b"x")
        assert not cache.remove(b"x")


def test_two_caches_are_two_members(pool: Kvfs) -> None:
    with opened(pool) as one, opened(pool) as two:
        one.put(b"x", noise(1))
        started = time.monotonic()
        while two.lookup([b"x"]) != [SIZE]:
            assert time.monotonic() - started < 5, "never seen"
        into = bytearray(SIZE)
        assert two.get_into(b"x", into) == SIZE
        assert into == noise(1)


def test_errors_leave_as_themselves(pool: Kvfs) -> None:
    with opened(pool) as cache:
        for error, call in (
            (NoObject, lambda: cache.get_into(b"x", bytearray(8))),
            (NoObject, lambda: cache.pin(b"x")),
            (BadBuffer, lambda: cache.put(b"x", "text")),
            (WrongNamespace, lambda: cache.lookup([Block(Namespace("other"), b"x")])),
        ):
            with pytest.raises(error):
                call()
    with pytest.raises(RuntimeError, match="own"), opened(pool):
        raise RuntimeError("own")


async def test_errors_of_the_block_are_not_put_into_groups(pool: Kvfs) -> None:
    with pytest.raises(NoObject):
        async with package.open_cache("hot", state=pool.state.root, memory=16 * MIB) as cache:
            await cache.get_into("missing", bytearray(8))


def test_a_closed_cache_says_so(pool: Kvfs) -> None:
    with opened(pool) as cache:
        pass
    for call in (lambda: cache.lookup([b"x"]), lambda: cache.put(b"x", b""), cache.statistics):
        with pytest.raises(CacheClosed, match="is closed"):
            call()
    with pytest.raises(CacheClosed):
        cache.lease(4096)


def test_a_child_of_a_fork_is_told_and_does_not_hang(pool: Kvfs) -> None:
    with opened(pool, buffers=MIB) as cache:
        cache.put(b"x", noise(1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of later Pythons, about forks among threads
            child = os.fork()
        if not child:
            calls = (lambda: cache.lookup([b"x"]), lambda: cache.get_into(b"x", bytearray(SIZE)))
            answers = 0
            for call in (*calls, lambda: cache.lease(4096), cache.statistics):
                try:
                    call()
                except CacheClosed as error:
                    answers += "belongs to the parent" in str(error)
            os._exit(answers)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert cache.lookup([b"x"]) == [SIZE]


def test_what_cannot_be_opened(pool: Kvfs) -> None:
    with pytest.raises(UnknownPool, match="no pool 'cold'"), sync.open_cache("cold", state=pool.state.root):
        pass
    with pytest.raises(ConfigError, match="memory 2MiB is too little"), opened(pool, memory=2 * MIB):
        pass


def test_nothing_is_left_behind(pool: Kvfs) -> None:
    with opened(pool, buffers=MIB):
        pass
    before = (_descriptors(), threading.active_count(), _locked())
    for _ in range(3):
        with opened(pool, buffers=MIB) as cache:
            cache.put(b"x", noise(1))
            cache.get_into(b"x", bytearray(SIZE))
            with pytest.raises(NoObject):
                cache.get_into(b"y", bytearray(SIZE))
    assert (_descriptors(), threading.active_count(), _locked()) == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _locked() -> int:
    """KiB of memory that are locked."""
    found = re.search(r"VmLck:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.numpy
def test_threads_tell_what_attention_read(pool: Kvfs) -> None:
    from tests.kvfs.attention import mass_on

    keys = [b"%d" % number for number in range(8)]
    with opened(pool) as cache:
        for number, key in enumerate(keys):
            cache.put(key, noise(number, KIB))
        assert cache.begin("r", keys, mode="sparse", budget=0.5, deadline=60) == 8
        cache.attend("r", 0, mass=mass_on(8, 3), tokens=16)
        assert set(cache.choose("r", 0)) == {0, 3, 6, 7}
        buffers = [bytearray(KIB) for _ in keys]
        with cache.layers([zip(keys, buffers, strict=True)], request="r", deadline=60) as coming:
            assert set(coming.chosen(0)) == {0, 3, 6, 7}
            assert coming.loaded(0) == [0, 3, 6, 7]
        for number, buffer in enumerate(buffers):
            assert buffer == (noise(number, KIB) if number in (0, 3, 6, 7) else bytes(KIB))
        with pytest.raises(BadAttention, match="at most 1 together"):
            cache.attend("r", 0, mass=[1.0, 1.0])
        with pytest.raises(TypeError, match="budgets"):
            cache.begin("s", keys, budgets=0.5)
        cache.end("r")
        with pytest.raises(BadKey):
            cache.attend("r", 0, mass=[1.0])


@pytest.mark.numpy
def test_the_example_of_attention_says_what_it_loses(pool: Kvfs, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import attention

    state = str(pool.state.root)
    assert attention.main(["hot", "--state-dir", state]) == 0
    found = re.findall(
        r"group \d: (\d+) of 64 blocks had (\d+)% of attention; .* by ([\d.]+)%", capsys.readouterr().out
    )
    assert len(found) == attention.GROUPS
    for blocks, mass, error in found:
        assert int(blocks) == 10
        assert int(mass) > 90
        assert 0 < float(error) < 30
    assert attention.main(["hot", "--state-dir", state, "--budget", "1"]) == 0
    assert (
        capsys.readouterr().out.count("64 of 64 blocks had 100% of attention; the outcome differs by 0.0%")
        == 4
    )
    assert attention.main(["hot", "--state-dir", state, "--budget", "0"]) == 1
    assert capsys.readouterr().err.startswith("attention: budget 0.0")
    with opened(pool, namespace=attention.NAMESPACE) as cache:  # it leaves nothing behind
        assert cache.lookup(attention.Model().keys(0)) == [None] * attention.BLOCKS


# ── the example ──────────────────────────────────────────────────────────────────────────────────────────────


def example(pool: Kvfs, *options: str) -> int:
    state = str(pool.state.root)
    return layers.main(
        [
            "hot",
            "--state-dir",
            state,
            "--layers",
            "6",
            "--layer-size",
            str(MIB),
            "--compute-ms",
            "1",
            *options,
        ]
    )


def test_the_example_hides_loading(pool: Kvfs, capsys: pytest.CaptureFixture[str]) -> None:
    assert example(pool) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 of 6 layers are there\n")
    assert re.search(r"\d+% of the loading was hidden; 0 layers wrong", out)


def test_the_example_sees_wrong_bytes(pool: Kvfs) -> None:
    request = layers.Request(3, MIB)
    with opened(pool) as cache:
        engine = layers.Engine(cache, request, 0.0)
        engine.store()
        cache.put(request.keys[1], request.content(2))
        buffer = memoryview(bytearray(3 * MIB))
        engine.run(buffer)
        assert engine.wrong(buffer) == [1]
        cache.remove(request.keys[2])
        assert engine.present() == 2
        with pytest.raises(NoObject):
            engine.run(buffer)


def test_the_example_says_what_is_wrong(pool: Kvfs, capsys: pytest.CaptureFixture[str]) -> None:
    assert layers.main(["cold", "--state-dir", str(pool.state.root)]) == 1
    assert capsys.readouterr().err.startswith("layers: no pool 'cold'")


@pytest.mark.parametrize("loading, together, hidden", [(1.0, 2.0, 1.0), (1.0, 2.5, 0.5), (1.0, 9.0, 0.0)])
def test_what_counts_as_hidden(loading: float, together: float, hidden: float) -> None:
    assert layers.Times(loading, 2.0, together).hidden == hidden

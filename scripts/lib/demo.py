"""Shows kvfs at work: a pool of files, an engine's workload that is larger than it, a kill -9, and a damaged bit.

Every block that is loaded is compared with what was stored, every byte of it. Takes away all that it made.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.offload import BLOCK_SIZE, Blocks, Engine, Outcome
from scripts.lib.trial_pool import DEVICES, TrialFailed, TrialPool

GB = 10**9
GIB = 1 << 30
LEAST_POOL = 0.5
"""GiB; a smaller pool loses so much to its layout that the numbers would mislead."""
LATEST = 100
"""Blocks that the engine asks for again at once: they are still in the mount's memory."""
SPARE = GIB // 2
"""Bytes of disk that must stay free beside the pool."""


# ---- telling --------------------------------------------------------------------------------------------------


def tell(what: str, result: str = "", seconds: float | None = None) -> None:
    took = "" if seconds is None else f"{seconds:8.2f} s"
    print(f"  {what:<34}{result:<44}{took:>10}".rstrip(), flush=True)


def tell_transfer(what: str, outcome: Outcome) -> None:
    result = f"{len(outcome.done)} blocks, {outcome.bytes / GB:.2f} GB, {outcome.rate / GB:.2f} GB/s"
    tell(what, result, outcome.seconds)


@contextmanager
def told(what: str, result: str = "") -> Iterator[None]:
    begun = time.monotonic()
    yield
    tell(what, result, time.monotonic() - begun)


def require(truth: bool, otherwise: str) -> None:  # noqa: FBT001 (reads as a sentence)
    if not truth:
        raise TrialFailed(otherwise)


# ---- the story ------------------------------------------------------------------------------------------------


def show(demo: TrialPool, workload: int, threads: int) -> None:
    """The whole of it, in order.

    :raises TrialFailed: at the first thing that is not as it should be
    """
    blocks = Blocks(demo.mount_point / "engine")
    engine = Engine(blocks, threads)
    numbers = range(workload // BLOCK_SIZE)

    print(
        f"A pool of {demo.pool_size / GIB:.1f} GiB in {DEVICES} files; {len(numbers)} KV blocks of 4 MiB to keep in it"
    )
    with told("pool created"):
        demo.create()
    with told("mounted"):
        demo.mount()

    print("An engine offloads more than fits: what it has not used for longest goes")
    kept = store_and_load(demo, engine, numbers)

    print("The process that serves the mount is killed (kill -9)")
    demo.kill()
    with told("what is left of it removed"):
        demo.umount()
    with told("mounted again"):
        demo.mount()
    recover(engine, numbers, kept)

    print("One bit of one block is flipped on the device, below the mount")
    demo.umount()
    victim = kept[len(kept) // 2]
    device = demo.flip(blocks.key(victim), BLOCK_SIZE // 2)
    tell("damaged", f"block {victim} on {device.name}")
    demo.mount()
    miss(engine, kept, victim)


def store_and_load(demo: TrialPool, engine: Engine, numbers: range) -> list[int]:
    """Returns the numbers of the blocks that are still there."""
    stored = engine.store(numbers)
    require(not stored.errors, f"stores failed: {stored.errors[:3]}")
    tell_transfer("stored", stored)
    begun = time.monotonic()
    kept = engine.present(numbers)
    gone = len(numbers) - len(kept)
    tell("looked up", f"{len(kept)} are there, {gone} were evicted", time.monotonic() - begun)
    require(gone > 0, "nothing was evicted though more was stored than fits")
    require(len(kept) * BLOCK_SIZE > demo.pool_size // 2, "far less is kept than fits")
    require(numbers[-1] in kept, "the block stored last was evicted")
    for what, some in (("loaded the latest", kept[-LATEST:]), ("loaded all, every byte compared", kept)):
        before = demo.read_from_devices()
        loaded = engine.load(some)
        check(loaded, some)
        tell_transfer(what, loaded)
        read = demo.read_from_devices() - before
        tell(
            "", f"{read / GB:.2f} GB of it from the devices, {(loaded.bytes - read) / GB:.2f} GB from memory"
        )
    return kept


def recover(engine: Engine, numbers: range, kept: Sequence[int]) -> None:
    begun = time.monotonic()
    there = engine.present(numbers)
    require(there == kept, f"{len(kept)} blocks were there before the kill, {len(there)} after it")
    tell("looked up", f"the same {len(there)} are there", time.monotonic() - begun)
    loaded = engine.load(there)
    check(loaded, there)
    tell_transfer("loaded all, every byte compared", loaded)


def miss(engine: Engine, kept: Sequence[int], victim: int) -> None:
    loaded = engine.load(kept)
    require(not loaded.corrupt, "the engine was given wrong bytes")
    require(loaded.missed == [victim], f"missed {loaded.missed}, and not just block {victim}")
    check(loaded, [number for number in kept if number != victim])
    tell_transfer("loaded all, every byte compared", loaded)
    tell("the damaged block", "is a miss: the engine computes it again")
    again = engine.store([victim])
    require(again.done == [victim] and engine.load([victim]).done == [victim], "it cannot be stored again")
    tell("stored and loaded again", "right")


def check(loaded: Outcome, expected: Sequence[int]) -> None:
    require(not loaded.errors, f"loads failed: {loaded.errors[:3]}")
    require(not loaded.corrupt, f"wrong bytes in blocks {loaded.corrupt[:10]}")
    require(loaded.done == list(expected), f"{len(expected) - len(loaded.done)} blocks were lost")


def terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp"), help="where the files go [%(default)s]"
    )
    parser.add_argument("--pool", type=float, default=2, metavar="GIB", help="size of the pool [%(default)s]")
    parser.add_argument(
        "--workload",
        type=float,
        default=4,
        metavar="GIB",
        help="how much the engine stores, more than the pool [%(default)s]",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=4,
        help="how many blocks the engine stores or loads at a time [%(default)s]",
    )
    arguments = parser.parse_args()
    pool_size = int(arguments.pool * GIB)
    if arguments.pool < LEAST_POOL:
        parser.error(f"--pool must be at least {LEAST_POOL} GiB")
    if arguments.workload <= arguments.pool:
        parser.error(
            "--workload must be larger than --pool: the demo shows what happens when it does not fit"
        )
    if not arguments.folder.is_dir():
        parser.error(f"{arguments.folder} is no directory; see --folder")
    if shutil.disk_usage(arguments.folder).free < pool_size + SPARE:
        parser.error(
            f"{arguments.folder} has less than {(pool_size + SPARE) / GIB:.1f} GiB free; see --folder, --pool"
        )
    signal.signal(signal.SIGTERM, terminated)
    begun = time.monotonic()
    with ExitStack() as stack:
        demo = TrialPool(Path(tempfile.mkdtemp(prefix="kvfs-demo-", dir=arguments.folder)), pool_size)
        stack.callback(demo.clean_up)
        try:
            show(demo, int(arguments.workload * GIB), arguments.threads)
        except TrialFailed as error:
            print(f"demo: FAILED: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    print(f"Done in {time.monotonic() - begun:.0f} s; everything it made is gone again.")
    print("The kvfs command is in .venv/bin; README.md has a short tour of it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

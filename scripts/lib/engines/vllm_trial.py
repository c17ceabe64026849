"""vLLM on the CPU keeps its KV cache in a kvfs mount: what a restart finds, what a kill leaves, what damage does.

vLLM's own offloading connector and `fs` tier store the KV blocks of a few conversations, once in a plain directory and
once in a mount. Every new vLLM process must then report a conversation's blocks as cached and print the same tokens.
Damage is where they part: in the plain directory vLLM takes wrong bytes for a hit and prints garbage, from the mount
it gets none.

Progress on stderr, one JSON object on stdout. Exit codes: 0 all as expected, 1 not, or it could not be shown, 2 usage,
3 the system lacks packages. Takes away all that it made but .venv and .venv-vllm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import string
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[3]))

from scripts.lib.bench import commit
from scripts.lib.engines.vllm_process import Answer, Vllm
from scripts.lib.trial_pool import TrialFailed, TrialPool

HERE = Path(__file__).parent
POOL_SIZE = 512 << 20
SPARE = 512 << 20
"""Bytes of disk beside the pool: the model, the plain directory."""
PROMPT_TOKENS = 1025
"""Eight blocks and one token more: vLLM computes at least the last one."""
BLOCK_TOKENS = 128
"""Of a file: vllm_life.py's FILE_TOKENS."""
BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
WHOLE = BLOCKS * BLOCK_TOKENS
VICTIM = 3
"""The block that is damaged where one is."""


# ---- damage ---------------------------------------------------------------------------------------------------

Spoil = Callable[[bytes], bytes]


def flip_a_bit(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def random_bytes(content: bytes) -> bytes:
    return random.Random(len(content)).randbytes(len(content))


def cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


# ---- what is expected -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """Of an answer.

    :ivar right: whether the output must be that of vLLM without any cache; None if it may be either
    """

    cached_tokens: int
    right: bool | None = True


COLD = Expected(0)
HIT = Expected(WHOLE)
UP_TO_VICTIM = Expected(VICTIM * BLOCK_TOKENS)
"""vLLM keeps the blocks before the first that it cannot load, and computes the others."""


@dataclass(frozen=True)
class Conversation:
    """One prompt, and what happens to its files.

    :ivar spoil: done to the content of each of the `spoiled` blocks
    :ivar plain: what vLLM makes of it in a plain directory
    :ivar mount: in a mount, damaged below it
    :ivar again: in the mount, by another life
    """

    name: str
    spoil: Spoil | None
    spoiled: tuple[int, ...]
    plain: Expected
    mount: Expected
    again: Expected = HIT


CONVERSATIONS = (
    Conversation("untouched", None, (), plain=HIT, mount=HIT),
    Conversation(
        "one bit flipped in a block",
        flip_a_bit,
        (VICTIM,),
        plain=Expected(WHOLE, right=None),
        mount=UP_TO_VICTIM,
    ),
    Conversation(
        "a block of random bytes",
        random_bytes,
        (VICTIM,),
        plain=Expected(WHOLE, right=False),
        mount=UP_TO_VICTIM,
    ),
    Conversation(
        "all blocks of random bytes",
        random_bytes,
        tuple(range(BLOCKS)),
        plain=Expected(WHOLE, right=False),
        mount=COLD,
        # vLLM has not touched the blocks behind the first, and stores none whose file is there: it finds them out
        # one in each life, unless `kvfs pool scrub` does at once.
        again=Expected(BLOCK_TOKENS),
    ),
    Conversation("a block cut short", cut_short, (VICTIM,), plain=UP_TO_VICTIM, mount=UP_TO_VICTIM),
)


@dataclass(frozen=True)
class Row:
    """One answer, and what it should have been."""

    files_in: str
    life: str
    conversation: str
    cached_tokens: int
    expected_cached_tokens: int
    right_output: bool
    expected_right_output: bool | None
    first_token_seconds: float
    ok: bool


def judge(
    conversation: Conversation,
    answer: Answer,
    right: Sequence[int],
    expected: Expected,
    *,
    where: tuple[str, str],
) -> Row:
    """What vLLM said against what it should have said.

    :param right: the output of vLLM without any cache
    :param where: what the files are in, and in which life
    """
    is_right = answer.output == list(right)
    return Row(
        *where,
        conversation.name,
        answer.cached_tokens,
        expected.cached_tokens,
        is_right,
        expected.right,
        round(answer.first_token_seconds, 4),
        ok=answer.cached_tokens == expected.cached_tokens and expected.right in (None, is_right),
    )


@dataclass(frozen=True)
class Change:
    """To one file."""

    path: Path
    before: bytes
    after: bytes


def damage(root: Path, answers: Sequence[Answer]) -> list[Change]:
    """What is to be done to the files."""
    return [
        Change(path := root / answer.blocks[number], before := path.read_bytes(), conversation.spoil(before))
        for conversation, answer in zip(CONVERSATIONS, answers, strict=True)
        if conversation.spoil
        for number in conversation.spoiled
    ]


def prompts() -> list[str]:
    """One a conversation, of as many bytes as tokens are wanted: the tokenizer makes one of each."""
    letters = random.Random(0)
    return ["".join(letters.choices(string.ascii_lowercase, k=PROMPT_TOKENS)) for _ in CONVERSATIONS]


# ---- the story ------------------------------------------------------------------------------------------------


class Trial:
    """All lives, in order, and what came of them."""

    def __init__(self, pool: TrialPool, vllm: Vllm) -> None:
        self._pool = pool
        self._vllm = vllm
        self._right: list[list[int]] = []
        self.rows: list[Row] = []

    def show(self) -> None:
        """
        :raises TrialFailed: something could not even be tried
        """
        say("making a model")
        self._vllm.make_model()
        self._in_plain_directory()
        self._in_mount()

    def _in_plain_directory(self) -> None:
        root = self._pool.folder / "plain"
        root.mkdir()
        answers = self._vllm.live(root)
        self._right = [answer.output for answer in answers]
        if len({tuple(output) for output in self._right}) < len(CONVERSATIONS):
            raise TrialFailed("the model answers all prompts alike: right and wrong could not be told apart")
        self._judge(("plain directory", "first"), answers, [COLD] * len(CONVERSATIONS))
        self._live(("plain directory", "restarted"), root, [HIT] * len(CONVERSATIONS))
        for change in damage(root, answers):
            change.path.write_bytes(change.after)
        self._live(("plain directory", "restarted after damage"), root, [one.plain for one in CONVERSATIONS])

    def _in_mount(self) -> None:
        pool = self._pool
        pool.create()
        pool.mount()
        root = pool.mount_point / "vllm"
        answers = self._live(("kvfs", "first"), root, [COLD] * len(CONVERSATIONS))
        self._live(("kvfs", "restarted"), root, [HIT] * len(CONVERSATIONS))
        say("kill -9 of the mount's process, mounting again")
        pool.kill()
        pool.umount()
        pool.mount()
        self._live(("kvfs", "restarted after kill -9 of the mount"), root, [HIT] * len(CONVERSATIONS))
        self._require_reads(root, answers)
        self._damage_device(damage(root, answers))
        self._live(
            ("kvfs", "restarted after damage on the device"), root, [one.mount for one in CONVERSATIONS]
        )
        self._live(("kvfs", "restarted once more"), root, [one.again for one in CONVERSATIONS])

    def _require_reads(self, root: Path, answers: Sequence[Answer]) -> None:
        """
        :raises TrialFailed: since it was mounted, the mount has read less than vLLM had of it
        """
        stored = sum((root / block).stat().st_size for answer in answers for block in answer.blocks)
        read = self._pool.read_from_devices()
        if read < stored:
            raise TrialFailed(f"of {stored} bytes of hits only {read} came from the pool's devices")

    def _damage_device(self, changes: Sequence[Change]) -> None:
        """Files are cut short through the mount, as by a program that was stopped; bytes are changed below it."""
        below = [change for change in changes if len(change.after) == len(change.before)]
        for change in changes:
            if change not in below:
                os.truncate(change.path, len(change.after))
        self._pool.umount()
        for change in below:
            self._pool.overwrite(change.before, change.after)
        self._pool.mount()

    def _live(self, where: tuple[str, str], root: Path, expected: Sequence[Expected]) -> list[Answer]:
        answers = self._vllm.live(root)
        self._judge(where, answers, expected)
        return answers

    def _judge(self, where: tuple[str, str], answers: Sequence[Answer], expected: Sequence[Expected]) -> None:
        say(", ".join(where))
        for of_one in zip(CONVERSATIONS, answers, self._right, expected, strict=True):
            row = judge(*of_one, where=where)
            self.rows.append(row)
            say(
                f"    {row.conversation:<28}{row.cached_tokens:>5} of {PROMPT_TOKENS} tokens cached, "
                f"{'right' if row.right_output else 'wrong'} output, first token after "
                f"{row.first_token_seconds:.3f} s{'' if row.ok else '   NOT AS EXPECTED'}"
            )


def say(text: str) -> None:
    print(f"engines: {text}", file=sys.stderr, flush=True)


def terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/engines vllm", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp"), help="where the files go [%(default)s]"
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no directory; see --folder")
    if shutil.disk_usage(options.folder).free < POOL_SIZE + SPARE:
        parser.error(f"{options.folder} has less than 1 GiB free; see --folder")
    signal.signal(signal.SIGTERM, terminated)
    begun = time.monotonic()
    with ExitStack() as stack:
        pool = TrialPool(Path(tempfile.mkdtemp(prefix="kvfs-engines-", dir=options.folder)), POOL_SIZE)
        stack.callback(pool.clean_up)
        (pool.folder / "vllm").mkdir()
        trial = Trial(pool, Vllm(pool.folder / "vllm", pool.folder.name, prompts()))
        try:
            trial.show()
        except TrialFailed as error:
            say(f"FAILED: {error}")
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    ok = all(row.ok for row in trial.rows)
    rows = [asdict(row) for row in trial.rows]
    print(json.dumps({"commit": commit(), "engine": engine(), "ok": ok, "rows": rows}, indent=1))
    say(f"{'all as expected' if ok else 'NOT as expected'}, in {time.monotonic() - begun:.0f} s")
    return 0 if ok else 1


def engine() -> str:
    """What was installed, with its version."""
    lines = (HERE / "vllm.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("vllm"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

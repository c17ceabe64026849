"""What scripts/engines says of an engine can be believed: it tells right from wrong, and damages what it means to.
The engine itself is too large for the suite."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lib.engines import vllm_process, vllm_trial
from scripts.lib.engines.vllm_process import Answer, Vllm
from scripts.lib.engines.vllm_trial import BLOCKS, CONVERSATIONS, PROMPT_TOKENS, VICTIM, Expected, judge
from scripts.lib.trial_pool import DEVICES, TrialFailed, TrialPool

ROOT = Path(__file__).parents[1]
BYTES = 5000
GONE_MS = 20_000


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=os.environ | environment
    )


# ---- the commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["vllm", "-h"]])
def test_help_installs_nothing(arguments: list[str]) -> None:
    result = run(ROOT / "scripts/engines", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: scripts/engines vllm")


@pytest.mark.parametrize("script", ["engines", "lib/engines-venv"])
@pytest.mark.parametrize("arguments", [[], ["vlm"]])
def test_what_is_no_engine_is_refused(script: str, arguments: list[str]) -> None:
    result = run(ROOT / "scripts" / script, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"usage: scripts/{script}")


def test_a_folder_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        vllm_trial.main(["--folder", str(tmp_path / "absent")])
    assert "is no directory; see --folder" in capsys.readouterr().err


def test_a_disk_that_is_too_small_is_told_before_anything_is_installed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    df = tmp_path / "bin" / "df"
    df.parent.mkdir()
    df.write_text("#!/bin/sh\necho Avail\necho 5\n")
    df.chmod(0o755)
    result = run(tmp_path / "scripts/lib/engines-venv", "vllm", PATH=f"{df.parent}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert ".venv-vllm needs 6 GiB of disk" in result.stderr
    assert not (tmp_path / ".venv-vllm").exists()


# ---- right and wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected, cached, output, ok",
    [
        (Expected(1024), 1024, [1, 2], True),
        (Expected(1024), 1024, [1, 3], False),
        (Expected(1024), 896, [1, 2], False),
        (Expected(0), 128, [1, 2], False),
        (Expected(1024, right=False), 1024, [0, 0], True),
        (Expected(1024, right=False), 1024, [1, 2], False),
        (Expected(1024, right=None), 1024, [0, 0], True),
        (Expected(1024, right=None), 1024, [1, 2], True),
        (Expected(1024, right=None), 0, [1, 2], False),
    ],
)
def test_answers_are_judged(expected: Expected, cached: int, output: list[int], ok: bool) -> None:
    row = judge(CONVERSATIONS[0], Answer(cached, output, 0.5, []), [1, 2], expected, where=("kvfs", "first"))
    assert row.ok is ok
    assert row.right_output is (output == [1, 2])


def test_prompts_differ_and_are_as_long_as_said() -> None:
    prompts = vllm_trial.prompts()
    assert [len(prompt) for prompt in prompts] == [PROMPT_TOKENS] * len(CONVERSATIONS)
    assert len({prompt[:100] for prompt in prompts}) == len(CONVERSATIONS)


# ---- damage ---------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(tmp_path: Path) -> list[Answer]:
    """As many blocks as vLLM would have stored, in files."""
    found = []
    for conversation in range(len(CONVERSATIONS)):
        blocks = [f"{conversation}-{number}.bin" for number in range(BLOCKS)]
        for block in blocks:
            (tmp_path / block).write_bytes(os.urandom(BYTES))
        found.append(Answer(0, [], 0.1, blocks))
    return found


def test_damage_is_what_its_name_says(tmp_path: Path, answers: list[Answer]) -> None:
    changes = {change.path.name: change for change in vllm_trial.damage(tmp_path, answers)}
    assert set(changes) == {
        *(f"{conversation}-{VICTIM}.bin" for conversation in (1, 2, 4)),
        *answers[3].blocks,
    }
    assert all(change.path.read_bytes() == change.before for change in changes.values())
    flipped = changes[f"1-{VICTIM}.bin"]
    assert sum((a ^ b).bit_count() for a, b in zip(flipped.before, flipped.after, strict=True)) == 1
    for name in (f"2-{VICTIM}.bin", *answers[3].blocks):
        same = sum(a == b for a, b in zip(changes[name].before, changes[name].after, strict=True))
        assert same < BYTES // 10
    short = changes[f"4-{VICTIM}.bin"]
    assert short.after == short.before[: BYTES // 2]


@pytest.fixture
def pool(tmp_path: Path) -> TrialPool:
    """Of devices that nobody has mounted."""
    pool = TrialPool(tmp_path, DEVICES << 16)
    for device in pool.devices:
        device.write_bytes(os.urandom(1 << 16))
    return pool


def test_a_payload_is_changed_where_it_is_and_nowhere_else(pool: TrialPool) -> None:
    before = [device.read_bytes() for device in pool.devices]
    payload = before[1][8192:12288]
    assert pool.flip(payload, 100) == pool.devices[1]
    after = pool.devices[1].read_bytes()
    assert [at for at in range(1 << 16) if before[1][at] != after[at]] == [8292]
    pool.flip(after[8192:12288], 100)
    pool.overwrite(payload, bytes(4096))
    expected = before[1][:8192] + bytes(4096) + before[1][12288:]
    assert [device.read_bytes() for device in pool.devices] == [before[0], expected]


def test_a_payload_that_is_nowhere_is_told(pool: TrialPool) -> None:
    with pytest.raises(TrialFailed, match="on no device"):
        pool.overwrite(os.urandom(64), bytes(64))


# ---- the engine's processes -----------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the place of vllm_life.py."""
    monkeypatch.setattr(vllm_process, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(vllm_process, "HERE", tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    return tmp_path / "vllm_life.py"


def test_a_life_gets_what_it_needs_and_its_answers_are_read(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(
        "import json, os, pathlib, sys\n"
        "_, model, root, engine_id, prompts, answers = sys.argv\n"
        "assert 'PYTHONHASHSEED' not in os.environ\n"
        "assert json.loads(pathlib.Path(prompts).read_text()) == ['one', 'two']\n"
        "one = dict(cached_tokens=128, output=[3], first_token_seconds=0.5, blocks=[engine_id])\n"
        "pathlib.Path(answers).write_text(json.dumps([one]))\n"
    )
    (tmp_path / "run").mkdir()
    vllm = Vllm(tmp_path / "run", "engine-7", ["one", "two"])
    assert vllm.live(tmp_path / "root") == [Answer(128, [3], 0.5, ["engine-7"])]


def test_a_life_that_fails_leaves_its_last_words_and_no_process(stand_in: Path, tmp_path: Path) -> None:
    """The engine's workers outlive it if nobody ends them."""
    stand_in.write_text(
        "import subprocess, sys\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'],\n"
        "    stdout=subprocess.PIPE)\n"
        "worker.stdout.readline()\n"
        "sys.exit(f'no memory for {worker.pid}')\n"
    )
    (tmp_path / "run").mkdir()
    vllm = Vllm(tmp_path / "run", "engine-7", [])
    with pytest.raises(TrialFailed, match=r"ended with 1.*\nno memory for (\d+)") as caught:
        vllm.live(tmp_path / "root")
    worker = int(str(caught.value).split()[-1])
    assert is_gone(worker)


def is_gone(pid: int) -> bool:
    """Whether it is, or ends now: it has been killed, but is not our child to wait for."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ending = select.poll()
        ending.register(descriptor, select.POLLIN)
        return bool(ending.poll(GONE_MS))
    finally:
        os.close(descriptor)

"""vLLM processes, one life after another, in the environment that `engines-venv` makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.lib.trial_pool import TrialFailed

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-vllm" / "bin" / "python"
LIFE_SECONDS = 600
LOG_LINES = 40
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Answer:
    """What vLLM said to one prompt: see vllm_life.py."""

    cached_tokens: int
    output: list[int]
    first_token_seconds: float
    blocks: list[str]


class Vllm:
    """Starts vLLM processes that answer the same prompts."""

    def __init__(self, folder: Path, engine_id: str, prompts: Sequence[str]) -> None:
        """
        :param folder: gets the model and whatever vLLM leaves
        :param engine_id: one that no other vLLM of this machine has; its shared memory is named after it
        """
        self._engine_id = engine_id
        self._model = folder / "model"
        self._log = folder / "vllm.log"
        self._answers = folder / "answers.json"
        self._prompts = folder / "prompts.json"
        self._prompts.write_text(json.dumps(prompts))
        (folder / "tmp").mkdir()
        # Without PYTHONHASHSEED: vLLM's block hashes must be, and are, the same in every process all the same.
        self._environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"} | {
            "PYTHONPATH": str(HERE),
            "TMPDIR": str(folder / "tmp"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "HF_HOME": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }

    def make_model(self) -> None:
        """
        :raises TrialFailed: it could not be made
        """
        self._run("vllm_model.py", self._model)

    def live(self, root: Path) -> list[Answer]:
        """One life with the `fs` tier in `root`.

        :raises TrialFailed: vLLM failed, or took too long
        """
        self._run("vllm_life.py", self._model, root, self._engine_id, self._prompts, self._answers)
        return [Answer(**one) for one in json.loads(self._answers.read_text())]

    def _run(self, script: str, *arguments: str | Path) -> None:
        with (
            self._log.open("wb") as log,
            subprocess.Popen(
                [PYTHON, HERE / script, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            ) as process,
        ):
            try:
                process.wait(LIFE_SECONDS)
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"{script} did not end in {LIFE_SECONDS} s: {self._last_words()}") from None
            finally:
                self._end(process.pid)
        if process.returncode:
            raise TrialFailed(f"{script} ended with {process.returncode}: {self._last_words()}")

    def _end(self, group: int) -> None:
        """End what is left of the process and its workers, and the shared memory that they leave when killed."""
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        for path in SHARED_MEMORY.glob(f"vllm_offload_{self._engine_id}*"):
            path.unlink()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(["its last words were", *lines[-LOG_LINES:]])

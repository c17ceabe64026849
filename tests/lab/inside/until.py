"""Runs a `kvfs` command again and again until it prints what is wanted.

until SECONDS WANTED ARGUMENT...     exit code 1, and what it printed last, if it does not in time
"""

from __future__ import annotations

import sys
import time

from tests.lab.inside.commands import ask

PAUSE = 0.5
"""Seconds."""


def main(seconds: float, wanted: str, arguments: list[str]) -> int:
    deadline = time.monotonic() + seconds
    while (answer := ask([arguments])[0])["out"] != wanted:
        if time.monotonic() > deadline:
            print(answer)
            return 1
        time.sleep(PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))

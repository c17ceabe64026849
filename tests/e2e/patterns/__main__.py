"""Run the suite on a plain directory and on a mount, and print what differs. Needs no packages."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.patterns import PATTERNS, Outcome, Pattern, Sizes

SIZES = (Sizes(block=200_000, count=6), Sizes(block=5 << 20, count=3))


def differences(pattern: Pattern, plain: Path, mount: Path, sizes: Sizes) -> list[str]:
    """What the mount answered otherwise than the plain directory did, a line each."""
    expected: Outcome = {**pattern.run(plain, sizes), **pattern.on_kvfs}
    got = pattern.run(mount, sizes)
    return [
        f"{step}: {got.get(step)!r}, expected {expected.get(step)!r}"
        for step in sorted(expected.keys() | got.keys())
        if got.get(step) != expected.get(step)
    ]


def main(plain: str, mount: str) -> int:
    """Exit status: 0 all agree, 1 something differs or failed."""
    failed = 0
    for number, sizes in enumerate(SIZES):
        for pattern in PATTERNS:
            name = f"{pattern.name}-{number}"
            try:
                lines = differences(pattern, Path(plain, name), Path(mount, name), sizes)
            except OSError as error:
                lines = [f"failed: {error!r}"]
            failed += bool(lines)
            sys.stdout.write(f"{'DIFFERS' if lines else 'ok':8}{name}\n")
            sys.stdout.writelines(f"        {line}\n" for line in lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))

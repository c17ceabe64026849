"""Soaks kvfs: engines' file patterns on several mounts of one pool that is always full, while members are killed,
stopped and mounted again and bytes are flipped on the devices. Every byte that is read is judged.

Prints one JSON report. Exit codes: 0 nothing lost, nothing wrong, nothing stalled, memory flat; 1 something was, see
`findings`; 2 usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from kvfs.errors import ConfigError
from kvfs.sizes import format_size, parse_size
from scripts.lib.soak.pool import SoakFailed
from scripts.lib.soak.run import Plan, Soak

GIB = 1 << 30
LEAST_POOL = GIB // 4
SPARE = GIB // 2
"""Bytes of disk that must stay free beside the pool."""
MEMBERS_MAX = 16


def plan_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Plan:
    """What the options ask for; ends with 2 where they make no sense."""
    try:
        size = parse_size(arguments.size)
        parse_size(arguments.memory)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    minutes = 5.0 if arguments.minutes is None else arguments.minutes
    seconds = arguments.hours * 3600 if arguments.hours is not None else minutes * 60
    if seconds <= 0:
        parser.error("--minutes and --hours must be more than 0")
    if not 1 <= arguments.members <= MEMBERS_MAX:
        parser.error(f"--members must be from 1 to {MEMBERS_MAX}")
    if size < LEAST_POOL:
        parser.error(f"--size must be at least {format_size(LEAST_POOL)}")
    if not arguments.folder.is_dir():
        parser.error(f"{arguments.folder} is no directory; see --folder")
    if shutil.disk_usage(arguments.folder).free < size + SPARE:
        parser.error(
            f"{arguments.folder} has less than {format_size(size + SPARE)} free; see --folder, --size"
        )
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="kvfs-soak-", dir=arguments.folder))
    return Plan(folder, seconds, seed, arguments.members, size, arguments.memory)


def interrupted(_number: int, _frame: object) -> NoReturn:
    """Once: what follows cleans up, which is not to be interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="for how long [5]")
    length.add_argument("--hours", type=float, help="the same, in hours")
    parser.add_argument("--seed", type=int, help="of what is done in which order [a new one, see the report]")
    parser.add_argument("--members", type=int, default=3, help="mounts of the pool [%(default)s]")
    parser.add_argument("--size", default="2GiB", help="of the pool [%(default)s]")
    parser.add_argument("--memory", default="256MiB", help="of each member [%(default)s]")
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp"), help="where the files go [%(default)s]"
    )
    parser.add_argument("--keep", action="store_true", help="leave the files there if something is found")
    arguments = parser.parse_args()
    plan = plan_of(parser, arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    soak = Soak(plan)
    keep = arguments.keep
    try:
        report = soak.run()
        keep = keep and not report["ok"]
    except SoakFailed as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        keep = False
        return 128 + signal.SIGINT
    finally:
        soak.clean_up(keep=keep)
        if keep:
            print(f"soak: the files are in {plan.folder}", file=sys.stderr)
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

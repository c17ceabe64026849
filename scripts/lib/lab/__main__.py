"""Emulated machines with real NVMe over fabrics and real RDMA, for tests and for trying things out.

  build   make the machines' image, if the one in the cache is not current; prints where it is
  run     start machines, run a command in each, and print what it prints; nothing is left behind

The working tree is in each machine: the command starts in it, as root, and may write to it, which is forgotten when
the machine ends, like all that is not on a --disk or --drive. Machines are called host1 and host2 and know each other
by these names; $KVFS_LAB_HOST says which one a command is in.

Exit codes: build: 0, 1 it could not be made. run: the command's (the first that is not 0, if there are several), 124
it was ended at its deadline, 125 the lab failed. Both: 2 usage, 3 this machine lacks something, named on stderr.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
import time
from typing import NoReturn

from scripts.lib.lab.channel import Command, Tee
from scripts.lib.lab.errors import BuildFailed, CommandTimedOut, LabError, Unavailable
from scripts.lib.lab.guest import Guest
from scripts.lib.lab.image import ensure
from scripts.lib.lab.lab import MEMORY, Lab

EXIT_LACKING, EXIT_DEADLINE, EXIT_LAB = 3, 124, 125
MOST_HOSTS = 2
_UNITS = {"M": 1 << 20, "G": 1 << 30}


def storage(text: str) -> tuple[str, int]:
    """NAME:SIZE, as the options take it."""
    match = re.fullmatch(r"([a-z][a-z0-9]{0,19}):([1-9]\d*)([MG])", text)
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not like state:64M: a short name in lower case, M or G"
        )
    return match[1], int(match[2]) * _UNITS[match[3]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="make the machines' image")
    run = verbs.add_parser("run", help="run a command in one machine, or in two")
    run.add_argument(
        "--hosts", type=int, choices=range(1, MOST_HOSTS + 1), default=1, help="machines [%(default)s]"
    )
    run.add_argument(
        "--memory", type=int, default=MEMORY, metavar="MIB", help="of each machine [%(default)s]"
    )
    for option, what in (("--disk", "virtio disk"), ("--drive", "NVMe drive")):
        run.add_argument(
            option,
            type=storage,
            action="append",
            default=[],
            metavar="NAME:SIZE",
            help=f"give each machine a {what}, /dev/lab/NAME; for instance d0:256M",
        )
    run.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="the command's deadline [%(default)s]"
    )
    run.add_argument("command", nargs="+", metavar="COMMAND", help="after --; a program and its arguments")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """Run the command in all machines at once; the exit code."""
    with Lab(ensure(tell)) as lab:
        disks, drives = dict(options.disk), dict(options.drive)
        for number in range(1, options.hosts + 1):
            lab.guest(f"host{number}", memory=options.memory, disks=disks, drives=drives)
        begun = time.monotonic()
        lab.boot(*lab.guests)
        tell(f"up after {time.monotonic() - begun:.0f} s")
        outputs = [_Output(guest.name if options.hosts > 1 else "") for guest in lab.guests]
        deadline = time.monotonic() + options.timeout
        commands = [
            _start(guest, options.command, output) for guest, output in zip(lab.guests, outputs, strict=True)
        ]
        codes = [_code(command, deadline) for command in commands]
        for output in outputs:
            output.flush()
    return next((code for code in codes if code), 0)


def _start(guest: Guest, argv: list[str], output: Tee) -> Command:
    return guest.popen(*argv, tee=output)


def _code(command: Command, deadline: float) -> int:
    try:
        code = command.wait(max(0, deadline - time.monotonic())).code
    except CommandTimedOut as error:
        tell(str(error).splitlines()[0])
        return EXIT_DEADLINE
    return code if code >= 0 else 128 - code


class _Output:
    """Passes on what a command prints: as it comes, or line by line after its machine's name."""

    _printing = threading.Lock()

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}| ".encode() if name else b""
        self._rest = {1: b"", 2: b""}

    def __call__(self, stream: int, piece: bytes) -> None:
        if self._prefix:
            *lines, self._rest[stream] = (self._rest[stream] + piece).split(b"\n")
            piece = b"".join(self._prefix + line + b"\n" for line in lines)
        self._print(stream, piece)

    def flush(self) -> None:
        """What came without a newline at the end."""
        for stream, rest in self._rest.items():
            if rest:
                self._print(stream, self._prefix + rest + b"\n")

    def _print(self, stream: int, piece: bytes) -> None:
        with self._printing:
            file = (sys.stdout if stream == 1 else sys.stderr).buffer
            file.write(piece)
            file.flush()


def tell(what: str) -> None:
    print(f"lab: {what}", file=sys.stderr, flush=True)


def terminated(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, terminated)
    try:
        if options.verb == "build":
            print(ensure(tell).folder)
            return 0
        return run(options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Unavailable as error:
        tell(str(error))
        return EXIT_LACKING
    except BuildFailed as error:
        tell(str(error))
        return 1 if options.verb == "build" else EXIT_LAB
    except LabError as error:
        tell(str(error))
        return EXIT_LAB


if __name__ == "__main__":
    sys.exit(main())

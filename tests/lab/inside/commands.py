"""Runs `kvfs` commands one after the other in one process: starting Python takes long under emulation.

stdin: a JSON list of argument lists. stdout: a JSON list of {"arguments", "code", "out", "err", "seconds"}.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time

from kvfs.cli.main import main


def run(arguments: list[str]) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    began = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    seconds = round(time.monotonic() - began, 3)
    return {
        "arguments": arguments,
        "code": code,
        "out": out.getvalue(),
        "err": err.getvalue(),
        "seconds": seconds,
    }


if __name__ == "__main__":
    json.dump([run(arguments) for arguments in json.load(sys.stdin)], sys.stdout)

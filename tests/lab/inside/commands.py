"""Runs `kvfs` commands, each as if by itself, in copies of a process that has loaded all that they need.

Loading takes 3 s under emulation, and a test runs dozens of commands. The first who asks starts the server, which goes on
until the guest dies. As a program: stdin is a JSON list of argument lists; stdout a JSON list of {"arguments", "code",
"out", "err", "seconds"}.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import socketserver
import subprocess
import sys
import time
from typing import Any

ADDRESS = "\0kvfs-commands"
START_SECONDS = 60.0
PAUSE = 0.05


def run(arguments: list[str]) -> dict[str, object]:
    from kvfs.cli.main import main

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


class Copy(socketserver.StreamRequestHandler):
    """In a process of its own."""

    def handle(self) -> None:
        answers = [run(arguments) for arguments in json.loads(self.rfile.readline())]
        self.wfile.write(json.dumps(answers).encode())


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 64


def serve() -> None:
    import kvfs.cli.main  # noqa: F401 - loaded once, for all copies

    with Server(ADDRESS, Copy) as server:
        server.serve_forever()


def connected() -> socket.socket:
    """To the server, which is started if there is none."""
    started: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + START_SECONDS
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(ADDRESS)
        except ConnectionRefusedError:
            client.close()
            if time.monotonic() > deadline:
                raise
            started = started or subprocess.Popen(
                [sys.executable, "-m", "tests.lab.inside.commands", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            time.sleep(PAUSE)
        else:
            return client


def ask(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands, one after the other."""
    with connected() as client, client.makefile("rb") as answers:
        client.sendall(json.dumps(commands).encode() + b"\n")
        found: list[dict[str, Any]] = json.load(answers)
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        json.dump(ask(json.load(sys.stdin)), sys.stdout)

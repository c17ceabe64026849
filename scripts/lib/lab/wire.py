"""What the lab and the agent in a guest say to each other, over a virtio serial port: frames, many commands at once.

A frame is a header (which command, what kind, how many bytes follow) and its payload:

    host → guest   RUN      JSON: argv, env; a newline; then what the command reads from stdin
                   SIGNAL   the number of the signal, to the command and all that it started
    guest → host   HELLO    the guest is up (command 0); empty
                   STDOUT   bytes, as they come
                   STDERR   bytes, as they come
                   EXIT     the exit code in decimal, negative for a signal; nothing follows for this command
                   ABSENT   why the command could not be started, instead of EXIT

The agent starts under emulation, so this imports next to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

RUN, SIGNAL, HELLO, STDOUT, STDERR, EXIT, ABSENT = range(7)
PORT = "kvfs.lab"
"""Name of the serial port."""
_HEADER = struct.Struct("<IBI")


class Frame(NamedTuple):
    """One message: which command it is about, its kind, its payload."""

    command: int
    kind: int
    payload: bytes


def encode(frame: Frame) -> bytes:
    """The bytes of a frame."""
    return _HEADER.pack(frame.command, frame.kind, len(frame.payload)) + frame.payload


def receive(read: Callable[[int], bytes]) -> Frame | None:
    """The next frame from `read`, which gives at most as many bytes as it is asked for and none at the end; None
    at the end, even amid a frame."""
    header = _exactly(read, _HEADER.size)
    if header is None:
        return None
    command, kind, length = _HEADER.unpack(header)
    payload = _exactly(read, length)
    return None if payload is None else Frame(command, kind, payload)


def _exactly(read: Callable[[int], bytes], length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = read(length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)

"""The Ethernet between guests: what one sends, all others get. Guests may come, go and come back; a cable can be pulled.

QEMU can join two machines by itself, but then the end of one ends the link for the other for good.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

_LENGTH = struct.Struct(">I")
_PIECE = 1 << 18


def whole_frames(received: bytes | bytearray) -> int:
    """How many of these bytes are whole frames, as QEMU sends them: length (4 bytes, big-endian), then the frame."""
    end = 0
    while end + _LENGTH.size <= len(received):
        after = end + _LENGTH.size + _LENGTH.unpack_from(received, end)[0]
        if after > len(received):
            break
        end = after
    return end


class Hub:
    """As many ports as guests, each known by the guest's name; nothing of it leaves this process."""

    def __init__(self) -> None:
        self._ports: dict[str, _Port] = {}
        self._cut: set[str] = set()

    def attach(self, name: str) -> socket.socket:
        """A new cable to the guest `name`, in place of the one it may have had; returns the guest's end."""
        self.detach(name)
        ours, its = socket.socketpair()
        port = _Port(ours)
        self._ports[name] = port
        port.thread = threading.Thread(
            target=self._forward, args=(name, port), name=f"hub {name}", daemon=True
        )
        port.thread.start()
        return its

    def detach(self, name: str) -> None:
        """Take the cable away; what is on its way to the guest is lost."""
        if port := self._ports.pop(name, None):
            port.close()

    def cut(self, name: str) -> None:
        """Nothing reaches the guest, and nothing that it sends arrives; neither side is told."""
        self._cut.add(name)

    def mend(self, name: str) -> None:
        """Undo `cut`."""
        self._cut.discard(name)

    def close(self) -> None:
        """Take all cables away."""
        for name in list(self._ports):
            self.detach(name)

    def _forward(self, name: str, port: _Port) -> None:
        received = bytearray()
        while piece := port.receive():
            received += piece
            end = whole_frames(received)
            if end and name not in self._cut:
                for other, its in list(self._ports.items()):
                    if other != name and other not in self._cut:
                        its.send(bytes(received[:end]))
            del received[:end]


class _Port:
    """Our end of a cable."""

    def __init__(self, cable: socket.socket) -> None:
        self.thread: threading.Thread | None = None
        self._cable = cable
        self._sending = threading.Lock()

    def receive(self) -> bytes:
        """Some bytes, or none when the guest has gone."""
        with suppress(OSError):
            return self._cable.recv(_PIECE)
        return b""

    def send(self, frames: bytes) -> None:
        """Whole frames; into the void if the guest has gone. Waits for a guest that does not keep up."""
        with self._sending, suppress(OSError):
            self._cable.sendall(frames)

    def close(self) -> None:
        with suppress(OSError):
            self._cable.shutdown(socket.SHUT_RDWR)
        if self.thread:
            self.thread.join()
        self._cable.close()

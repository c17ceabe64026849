"""The lab: guests and the network between them, for the length of a `with`.

with Lab() as lab:
    storage = lab.guest("storage", drives={"n0": 1 << 30})
    gpu = lab.guest("gpu", disks={"state": 1 << 28})
    lab.boot(storage, gpu)
    gpu.run("ping", "-c", "1", "storage")
    storage.kill()
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import IO, Self

from scripts.lib.lab.guest import Guest
from scripts.lib.lab.hub import Hub
from scripts.lib.lab.image import Image, current
from scripts.lib.lab.machine import Hardware, require_qemu, sparse_file

MEMORY = 1536
"""MiB of a guest; taken only as the guest uses it."""


class Lab:
    """Guests, by default none. Leaving the `with` kills them all and leaves nothing behind."""

    def __init__(self, image: Image | None = None) -> None:
        """
        :raises Unavailable: there is no image, or no QEMU
        """
        require_qemu()
        self._image = image or current()
        self._hub = Hub()
        self._stack = ExitStack()
        self._guests: dict[str, Guest] = {}

    def __enter__(self) -> Self:
        self._stack.callback(self._hub.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def guests(self) -> list[Guest]:
        """All, in the order of their making."""
        return list(self._guests.values())

    def guest(
        self,
        name: str,
        *,
        memory: int = MEMORY,
        disks: Mapping[str, int] | None = None,
        drives: Mapping[str, int] | None = None,
    ) -> Guest:
        """A new guest, not running yet. Guests know those by name that were made before they are started.

        :param name: letters and digits
        :param memory: MiB
        :param disks: virtio disks, name → bytes: /dev/lab/NAME in the guest; they keep their content while the lab lasts
        :param drives: NVMe drives, likewise
        """
        assert name not in self._guests, f"there is a {name} already"
        hardware = Hardware(
            number=len(self._guests) + 1,
            memory=memory,
            console=self._file(0),
            disks={disk: self._file(size) for disk, size in (disks or {}).items()},
            drives={drive: self._file(size) for drive, size in (drives or {}).items()},
        )
        guest = Guest(self._image, self._hub, name, hardware, self._addresses)
        self._guests[name] = guest
        self._stack.callback(guest.kill)
        return guest

    def boot(self, *guests: Guest) -> None:
        """Start these side by side and wait until all take commands.

        :raises BootFailed:
        """
        for guest in guests:
            guest.power_on()
        for guest in guests:
            guest.wait_up()

    def _file(self, size: int) -> IO[bytes]:
        return self._stack.enter_context(sparse_file(size))

    def _addresses(self) -> dict[str, str]:
        return {name: guest.address for name, guest in self._guests.items()}

"""One emulated machine: a QEMU process, from power on to its end. Its disks are files without a name, its lines to us
sockets without one: whatever ends it, or us, nothing is left."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from scripts.lib.lab.errors import Unavailable
from scripts.lib.lab.image import Image
from scripts.lib.lab.recipe import ROOT
from scripts.lib.lab.wire import PORT

QEMU = "qemu-system-x86_64"
_END_SECONDS = 30
_KERNEL_OPTIONS = (
    *("console=ttyS0", "quiet", "panic=-1"),
    *(
        "mitigations=off",
        "nokaslr",
        "tsc=reliable",
        "nowatchdog",
        "edd=off",
    ),  # each saves time under emulation
)


@dataclass(frozen=True)
class Hardware:
    """What a machine has beside the root disk and the network."""

    number: int
    """Which of the lab's machines it is, from 1; its network address follows from it."""
    memory: int
    """MiB."""
    console: IO[bytes]
    """Takes what the machine prints, and what QEMU does; emptied at each start."""
    disks: Mapping[str, IO[bytes]] = field(default_factory=dict)
    """Virtio disks by name."""
    drives: Mapping[str, IO[bytes]] = field(default_factory=dict)
    """NVMe drives by name."""


class Machine:
    """Running since it exists, until it is killed or ends by itself.

    The process is killed by the kernel if the thread that made this ends: only the main thread should.
    """

    def __init__(
        self, image: Image, hardware: Hardware, options: list[str], port: socket.socket, cable: socket.socket
    ) -> None:
        """`options` are more words for the kernel's command line; `port` and `cable` are the machine's ends of its
        serial port and its network, and closed here."""
        self._console = hardware.console.fileno()
        os.ftruncate(self._console, 0)
        os.lseek(self._console, 0, os.SEEK_SET)
        files = [*hardware.disks.values(), *hardware.drives.values()]
        with port, cable:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", QEMU),
                    *_machine(hardware.memory),
                    *_boot(image, [*_KERNEL_OPTIONS, *options]),
                    *_lines(port.fileno(), cable.fileno(), hardware.number),
                    *_storage(hardware),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._console,
                stderr=self._console,
                pass_fds=[port.fileno(), cable.fileno(), *(file.fileno() for file in files)],
                start_new_session=True,  # Ctrl-C in a terminal is for us; the machine ends when we say so
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def console(self) -> str:
        """All that the machine printed to its serial console so far, and QEMU to its stderr."""
        printed = os.pread(self._console, self.console_size(), 0)
        return printed.decode(errors="replace").replace("\r", "")

    def console_size(self) -> int:
        """Bytes that were printed there so far."""
        return os.fstat(self._console).st_size

    def kill(self) -> None:
        """Pull the plug: what the guest had not written to its disks is lost."""
        self._process.kill()
        self._process.wait(_END_SECONDS)


def require_qemu() -> None:
    """
    :raises Unavailable: QEMU, or what starts it, is not installed
    """
    if os.uname().machine != "x86_64":
        raise Unavailable("the lab's image is for x86-64, and made by running its programs")
    for program in (QEMU, "setpriv"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed")


def _machine(memory: int) -> list[str]:
    # One processor: with two, one boot in ten died in the kernel. la57: page tables of four levels are cheaper to
    # walk. No hardware virtualisation: it may be there and not work, and the emulation is the same everywhere.
    return [
        *("-M", "q35", "-accel", "tcg", "-cpu", "max,la57=off", "-smp", "1", "-m", str(memory)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"),
        *("-device", "virtio-rng-pci"),
    ]


def _boot(image: Image, options: list[str]) -> list[str]:
    # The root disk is the same for all, and what a guest writes to it is gone with the guest.
    return [
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", " ".join(options)),
        *("-drive", f"file={image.disk},if=none,id=root,format=raw,snapshot=on,cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-fsdev", f"local,id=tree,path={ROOT},security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=tree,mount_tag=tree"),
    ]


def _lines(port: int, cable: int, number: int) -> list[str]:
    return [
        *("-chardev", f"socket,id=port,fd={port}", "-device", "virtio-serial-pci"),
        *("-device", f"virtserialport,chardev=port,name={PORT}"),
        *("-netdev", f"stream,id=net,server=off,addr.type=fd,addr.str={cable}"),
        *(
            "-device",
            f"virtio-net-pci,netdev=net,mac=52:54:00:00:00:{number:02x},rx_queue_size=1024,romfile=",
        ),
    ]


def _storage(hardware: Hardware) -> list[str]:
    words = []
    for kind, files in (("virtio-blk-pci", hardware.disks), ("nvme", hardware.drives)):
        for name, file in files.items():
            words += ["-drive", f"file=/dev/fd/{file.fileno()},if=none,id={name},format=raw"]
            words += ["-device", f"{kind},drive={name},serial={name}"]
    return words


def sparse_file(size: int) -> IO[bytes]:
    """A file of so many bytes that has no name and takes no room until it is written."""
    file = tempfile.TemporaryFile(dir=Path("/var/tmp"))  # noqa: SIM115 (the caller's)
    file.truncate(size)
    return file

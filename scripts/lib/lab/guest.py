"""A guest as a test sees it: something to run commands in, kill, boot again, and unplug."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Mapping

from scripts.lib.lab.channel import COMMAND_SECONDS, Channel, Command, Finished, Tee
from scripts.lib.lab.errors import BootFailed, GuestGone
from scripts.lib.lab.hub import Hub
from scripts.lib.lab.image import Image
from scripts.lib.lab.machine import Hardware, Machine

ATTEMPTS = 3
STALL_SECONDS = 90.0
"""A boot that prints nothing for as long is dead; alone on two cores it prints every 4 s."""
BOOT_SECONDS = 300.0
_CONSOLE_LINES = 30
_RDMA = """
modprobe -a rdma_rxe rdma_ucm
[ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev eth0
for attempt in $(seq 100); do
    grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state && exit
    sleep 0.1
done
echo "rxe0 does not become active" >&2
exit 1
"""


class Guest:
    """One guest of a lab. Made by `Lab.guest`; not running before it is started.

    Its root file system is fresh at each boot, and /tmp is in memory; its disks and drives last as long as the lab.
    """

    def __init__(
        self, image: Image, hub: Hub, name: str, hardware: Hardware, hosts: Callable[[], Mapping[str, str]]
    ) -> None:
        self.name = name
        """Also its host name, and $KVFS_LAB_HOST in its commands."""
        self._image = image
        self._hub = hub
        self._hardware = hardware
        self._hosts = hosts
        self._machine: Machine | None = None
        self._channel: Channel | None = None

    @property
    def address(self) -> str:
        """Its IPv4 address in the lab's network."""
        return f"192.0.2.{self._hardware.number}"

    @property
    def running(self) -> bool:
        return self._machine is not None and self._machine.running

    @property
    def console(self) -> str:
        """What the kernel and the boot printed, this time."""
        return self._machine.console if self._machine else ""

    # ---- its life ----

    def start(self) -> None:
        """Power on, and wait until it takes commands: 10 s alone on two cores.

        :raises BootFailed:
        """
        self.power_on()
        self.wait_up()

    def power_on(self) -> None:
        """Power on and do not wait. Only from the main thread: the guest dies with the thread that started it."""
        assert not self.running, f"{self.name} is running"
        self.kill()
        ours, its = socket.socketpair()
        options = [
            f"lab.name={self.name}",
            f"lab.address={self.address}",
            f"lab.hosts={','.join(f'{name}:{address}' for name, address in self._hosts().items())}",
            f"lab.id={uuid.uuid5(uuid.NAMESPACE_DNS, self.name)}",
            f"lab.disks={','.join(self._hardware.disks)}",
            f"lab.drives={','.join(self._hardware.drives)}",
        ]
        self._machine = Machine(self._image, self._hardware, options, its, self._hub.attach(self.name))
        self._channel = Channel(ours)

    def wait_up(self) -> None:
        """Wait until it takes commands. One that gives no sign of life, or dies, is powered on again.

        :raises BootFailed: not the third time either
        """
        for attempt in range(1, ATTEMPTS + 1):
            assert self._machine
            assert self._channel
            why = self._channel.wait_up(self._machine.console_size, STALL_SECONDS, BOOT_SECONDS)
            if why is None:
                return
            console = "\n".join(self.console.splitlines()[-_CONSOLE_LINES:])
            self.kill()
            if attempt == ATTEMPTS:
                raise BootFailed(f"{self.name}: {why}; the end of its console:\n{console}")
            self.power_on()

    def kill(self) -> None:
        """Pull the plug; does nothing to one that is not running. What it had not written out is lost."""
        if self._machine:
            self._machine.kill()
            self._hub.detach(self.name)
        if self._channel:
            self._channel.close()

    def reboot(self) -> None:
        """Write everything out, pull the plug, start again.

        :raises BootFailed:
        """
        self.run("sync")
        self.kill()
        self.start()

    # ---- its network ----

    def unplug(self) -> None:
        """Nothing reaches it or comes from it over the network, and neither side is told; commands still do."""
        self._hub.cut(self.name)

    def plug(self) -> None:
        """Undo `unplug`."""
        self._hub.mend(self.name)

    def rdma_up(self) -> None:
        """Give it an RDMA device, rxe0 (soft-RoCE over its network card), if it has none."""
        self.sh(_RDMA)

    # ---- commands ----

    def popen(
        self, *argv: str, env: Mapping[str, str] | None = None, stdin: bytes = b"", tee: Tee | None = None
    ) -> Command:
        """Start a command, as root, in the working tree.

        :raises GuestGone:
        """
        if not self._channel or not self.running:
            raise GuestGone(f"{self.name} is not running")
        return self._channel.start(argv, env or {}, stdin, tee)

    def run(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        seconds: float = COMMAND_SECONDS,
        check: bool = True,
    ) -> Finished:
        """Run a command to its end, as root, in the working tree.

        :raises CommandFailed: its exit code is not 0, unless `check` is false
        :raises CommandTimedOut: it took more than `seconds`
        :raises GuestGone:
        """
        finished = self.popen(*argv, env=env, stdin=stdin).wait(seconds)
        return finished.check() if check else finished

    def sh(self, script: str, *, seconds: float = COMMAND_SECONDS) -> str:
        """Run lines of bash, of which none may fail, and return what they print.

        :raises CommandFailed:
        """
        return self.run("bash", "-euo", "pipefail", "-c", script, seconds=seconds).stdout

    def read(self, path: str) -> bytes:
        """The content of a file.

        :raises CommandFailed:
        """
        return self.run("cat", "--", path).output

    def write(self, path: str, content: bytes) -> None:
        """Make or replace a file, and the directories above it.

        :raises CommandFailed:
        """
        self.run("install", "-D", "-m", "644", "/dev/stdin", path, stdin=content)

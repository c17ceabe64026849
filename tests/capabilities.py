"""What this machine can do, found out by doing it: each probe answers why not, or None."""

from __future__ import annotations

import array
import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.lib.lab.errors import Unavailable
from scripts.lib.lab.image import current
from scripts.lib.lab.machine import require_qemu

PROBE_SECONDS = 20
_CAP_SYS_ADMIN = 21
SGLANG = Path(__file__).parent.parent / ".venv-sglang"
"""The virtual environment of SGLang."""
SMOLLM2 = SGLANG.with_name(".venv-smollm2")
"""The virtual environment of a small model."""


@functools.cache
def lacks_fuse() -> str | None:
    """Mounts an empty FUSE file system that nobody serves, and takes it away again."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is absent or not ours to open"
    if not shutil.which("fusermount3"):
        return "fusermount3 is not installed"
    ours, its = socket.socketpair()
    with ours, its, tempfile.TemporaryDirectory(prefix="kvfs-probe-") as folder:
        mount = _run("fusermount3", "-o", "nosuid,nodev", "--", folder, pass_fd=its.fileno())
        if mount.returncode:
            return f"fusermount3 cannot mount: {mount.stderr.strip()}"
        try:
            _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
            for _, _, data in ancillary:
                for descriptor in array.array("i", data):
                    os.close(descriptor)
        finally:
            _run("fusermount3", "-u", "-z", "--", folder)
    return None


@functools.cache
def lacks_loop() -> str | None:
    """Attaches a small file to a loop device and detaches it."""
    if not shutil.which("losetup", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        return "losetup is not installed"
    with tempfile.NamedTemporaryFile(prefix="kvfs-probe-") as file:
        file.truncate(1 << 20)
        attach = _run("losetup", "--find", "--show", file.name)
        if attach.returncode:
            return f"losetup cannot attach: {attach.stderr.strip()}"
        device = attach.stdout.strip()
        usable = os.access(device, os.R_OK | os.W_OK)
        _run("losetup", "--detach", device)
    return None if usable else f"{device} is not ours to open"


@functools.cache
def lacks_sglang() -> str | None:
    """Imports nothing: the script that made the environment did, before it left the stamp."""
    if not (SGLANG / "engine.stamp").is_file():
        return f"{SGLANG.name} is absent or incomplete: scripts/lib/engines-venv sglang makes it (2.3 GB)"
    return None


@functools.cache
def lacks_smollm2() -> str | None:
    """Imports nothing, either."""
    if not (SMOLLM2 / "engine.stamp").is_file():
        return f"{SMOLLM2.name} is absent or incomplete: scripts/lib/engines-venv smollm2 makes it (250 MB)"
    return None


@functools.cache
def lacks_lab() -> str | None:
    """Boots nothing: that the image could be made says that this machine can boot it."""
    try:
        current()
        require_qemu()
    except Unavailable as reason:
        return str(reason)
    return None


def lacks_passthrough() -> str | None:
    """Asks for what the kernel asks for: it cannot be tried without a mount that somebody serves."""
    if os.geteuid() or Path("/proc/self/uid_map").read_text().split() != ["0", "0", str((1 << 32) - 1)]:
        return "only root of the machine may let the kernel read files by itself"
    effective = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if effective is not None and not int(effective[1], 16) >> _CAP_SYS_ADMIN & 1:
        return "to let the kernel read files by itself takes CAP_SYS_ADMIN"
    release = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return None if release >= (6, 9) else f"Linux {os.uname().release} has no FUSE passthrough"


def lacks_module(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"{name} is not installed beside the tests"


def lacks_traces() -> str | None:
    folder = os.environ.get("KVFS_TRACES")
    if not folder or not any(Path(folder).glob("*.jsonl.xz")):
        return "KVFS_TRACES names no folder with traces of requests (*.jsonl.xz)"
    return None


CAPABILITIES: Mapping[str, Callable[[], str | None]] = {
    "fuse": lacks_fuse,
    "loop": lacks_loop,
    "lab": lacks_lab,
    "passthrough": lacks_passthrough,
    "numpy": functools.partial(lacks_module, "numpy"),
    "sglang": lacks_sglang,
    "smollm2": lacks_smollm2,
    "torch": functools.partial(lacks_module, "torch"),
    "traces": lacks_traces,
}
"""Marker → probe."""


def _run(*command: str, pass_fd: int | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    if pass_fd is not None:
        environment["_FUSE_COMMFD"] = str(pass_fd)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PROBE_SECONDS,
        check=False,
        env=environment,
        pass_fds=() if pass_fd is None else (pass_fd,),
    )

"""What the guests' image is made of. Whatever changes here, or in the code that follows it, makes another image."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
"""The working tree."""
HERE = Path(__file__).parent
SUITE = "trixie"
"""Debian 13: the first whose kernel has NVMe authentication and nvme-loop."""
PYTHON = "3.13"
"""The suite's."""
PACKAGES = (
    "busybox-static",  # the first steps of booting
    "dmsetup",
    "e2fsprogs",
    "fuse3",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "kmod",
    "ktls-utils",
    "linux-image-amd64",
    "mount",
    "nvme-cli",
    "procps",
    "python3",
    "python3-pyfuse3",
    "python3-pyverbs",  # must match rdma-core exactly, so never from an index
    "rdma-core",
    "util-linux",
)
MODULES = (
    *("virtio_console", "virtio_net", "virtio_rng", "configfs", "loop", "fuse"),
    *("rdma_rxe", "rdma_ucm", "rdma_cm", "ib_uverbs", "ib_umad"),
    "crc32_generic",  # rxe asks the kernel's crypto layer for crc32 by name, and fails with ENOENT without it
    *("nvme", "nvme_core", "nvme_fabrics", "nvme_tcp", "nvme_rdma", "nvme_auth", "nvme_keyring"),
    *("tls", "gcm", "ghash_generic", "ctr", "aes_generic"),  # and the ciphers of its kernel part, by name
    *("nvmet", "nvmet_tcp", "nvmet_rdma", "nvme_loop"),
    *(
        "dh_generic",
        "hmac",
        "sha256_generic",
        "sha512_generic",
    ),  # NVMe authentication asks for them by name, too
    *("brd", "null_blk", "ublk_drv", "dm_mod", "dm_delay", "dm_flakey", "dm_snapshot", "sch_netem"),
)
"""What can be loaded in a guest, with what it depends on; all others are left out."""
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "9p", "9pnet_virtio", "overlay")
"""What it takes to reach the root disk and the working tree."""
TREE = "/kvfs"
"""Where the working tree is in a guest."""
TOOLS = frozenset({"hypothesis", "pytest", "pytest-timeout", "pytest-trio"})
"""What of the project's development tools is in the image."""
_FROM_DEBIAN = frozenset({"pyfuse3"})
"""Has no wheel, and would need a compiler in the guest."""


def requirements() -> list[str]:
    """What pip installs: what the project depends on, and the tools that its tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    depends = [r for r in project["dependencies"] if _name(r) not in _FROM_DEBIAN]
    return sorted(depends + [r for r in project["optional-dependencies"]["dev"] if _name(r) in TOOLS])


def key() -> str:
    """Changes when the image would: 16 hex digits."""
    digest = hashlib.sha256("\n".join(requirements()).encode())
    for name in ("build.py", "cpio.py", "guest/initrd", "recipe.py"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match, f"not a requirement: {requirement!r}"
    return match[0]

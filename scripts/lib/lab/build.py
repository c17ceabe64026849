"""Makes the guests' image from Debian's packages and the project's dependencies: a kernel, an initial RAM disk, and
a root disk. Needs root, mmdebstrap and mkfs.ext4."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.lib.lab import mirror
from scripts.lib.lab.cpio import archive
from scripts.lib.lab.errors import BuildFailed
from scripts.lib.lab.recipe import BOOT_MODULES, HERE, MODULES, PACKAGES, PYTHON, SUITE, TREE, requirements

KERNEL, INITRD, DISK = "vmlinuz", "initrd", "root.img"
"""The files of an image."""
DISK_SIZE = 8 << 30
"""Bytes; sparse, so that tests have room and the cache does not pay for it."""
STEP_SECONDS = 900
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
_NOT_RUN = "/etc/kernel/postinst.d/*"
"""Would make an initial RAM disk of Debian's own, which takes long under no load and is not used."""
_COMMAND = """#!/bin/sh
exec python3 -m kvfs "$@"
"""
Tell = Callable[[str], None]


def build(folder: Path, tell: Tell) -> None:
    """Fill an empty directory with an image; `tell` hears about each step.

    :raises BuildFailed: with the last words of the program that failed
    """
    root = folder / "root"
    tell(f"fetching and unpacking Debian's packages ({SUITE})")
    _bootstrap(root, folder / "apt.conf")
    tell("installing the project's dependencies")
    _install_python(root)
    tell("making the disk")
    version = next((root / "usr/lib/modules").iterdir()).name
    shutil.copyfile(root / "boot" / f"vmlinuz-{version}", folder / KERNEL)
    (folder / INITRD).write_bytes(_initrd(root, version))
    _prune(root, version)
    _make_disk(root, folder / DISK)
    shutil.rmtree(root)


def _bootstrap(root: Path, options: Path) -> None:
    """Unpacks and configures the packages, in a mount namespace of its own: nothing stays mounted, whatever happens."""
    options.write_text(mirror.apt_options())
    _run(
        *("unshare", "--mount", "--fork", "--kill-child", "--"),
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=essential", f"--keyring={mirror.KEYRING}"),
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in (*_LEFT_OUT, _NOT_RUN)),
        f"--aptopt={options}",
        *(SUITE, str(root), *mirror.source(SUITE)),
    )
    options.unlink()


def _install_python(root: Path) -> None:
    """Wheels for the guest's Python, by this Python's pip and its configuration."""
    local = root / "usr/local"
    packages = local / f"lib/python{PYTHON}/dist-packages"
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"),
        *(f"--platform={platform}" for platform in _PLATFORMS),
        *("--target", str(packages), *requirements()),
    )
    _run("chroot", str(root), "python3", "-m", "compileall", "-q", f"/{packages.relative_to(root)}")
    (packages / "kvfs.pth").write_text(f"{TREE}\n")
    command = local / "bin/kvfs"
    command.write_text(_COMMAND)
    command.chmod(0o755)


def _initrd(root: Path, version: str) -> bytes:
    files = {"init": (HERE / "guest/initrd").read_bytes(), "bin/busybox": (root / "bin/busybox").read_bytes()}
    for number, module in enumerate(_needed(root, version, BOOT_MODULES)):
        packed = (root / module).read_bytes()  # busybox's insmod takes no compressed ones
        files[f"modules/{number:02}.ko"] = lzma.decompress(packed) if module.suffix == ".xz" else packed
    return gzip.compress(archive(["bin", "modules", "dev"], files), 1)


def _needed(root: Path, version: str, names: tuple[str, ...]) -> Iterator[Path]:
    """The files of these modules and of all that they depend on, relative to the root, in the order of loading."""
    seen = set()
    for name in names:
        listing = _run("chroot", str(root), "modprobe", "-S", version, "--show-depends", name)
        for line in listing.splitlines():
            kind, path, *_ = line.split()  # "insmod /lib/modules/…" or "builtin NAME"
            if kind == "insmod" and path not in seen:
                seen.add(path)
                yield Path("usr", path.removeprefix("/usr").removeprefix("/"))


def _prune(root: Path, version: str) -> None:
    """Leaves out what no guest uses, and what this machine's configuration left."""
    modules = root / "usr/lib/modules" / version
    kept = {root / path for path in _needed(root, version, (*BOOT_MODULES, *MODULES))}
    for module in modules.rglob("*.ko*"):
        if module not in kept:
            module.unlink()
    _run("chroot", str(root), "depmod", version)
    for folder in ("boot", "etc/apt", "var/cache", "var/lib/apt"):
        shutil.rmtree(root / folder)
    (root / "mnt/tree").mkdir()
    (root / TREE.removeprefix("/")).mkdir()


def _make_disk(root: Path, disk: Path) -> None:
    with disk.open("xb") as file:
        file.truncate(DISK_SIZE)
    _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(root), str(disk))


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS,
        check=False,
    )
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BuildFailed(f"{command[0]} failed with exit code {done.returncode}:\n{end}")
    return done.stdout

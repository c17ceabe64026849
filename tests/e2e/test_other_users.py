"""A mount that root opened to others serves engines that are not root, with the rights that modes and owners say."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from tests.e2e.mounts import Mount
from tests.e2e.patterns import PATTERNS, Pattern, Sizes
from tests.e2e.patterns.toolkit import attempt, system_call

NOBODY = 65534
SIZES = Sizes(block=200_000, count=4)
_SETRESUID, _SETRESGID, _SETGROUPS = {"x86_64": (117, 119, 116), "aarch64": (147, 149, 159)}.get(
    os.uname().machine, (0, 0, 0)
)

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

T = TypeVar("T")


def as_nobody(call: Callable[[], T]) -> T:
    """Run `call` in a thread that is another user. The C library would change all threads; the kernel's calls, used
    here, change the one that makes them and those that it starts.
    """

    def run() -> T:
        system_call(_SETGROUPS, 0, None)
        system_call(_SETRESGID, NOBODY, NOBODY, NOBODY)
        system_call(_SETRESUID, NOBODY, NOBODY, NOBODY)
        return call()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that others may enter; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="kvfs-e2e-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def open_mount(folder: Path) -> Iterator[Mount]:
    with closing(Mount(folder, "--allow-other")) as mount:
        mount.start()
        yield mount


def _own(path: Path) -> Path:
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    return path


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_patterns(pattern: Pattern, folder: Path, open_mount: Mount) -> None:
    open_mount.watch()
    plain, mounted = _own(folder / pattern.name), _own(open_mount.path / pattern.name)
    expected = {**as_nobody(lambda: pattern.run(plain / "root", SIZES)), **pattern.on_kvfs}
    assert as_nobody(lambda: pattern.run(mounted / "root", SIZES)) == expected
    assert {path.lstat().st_uid for path in mounted.rglob("*")} <= {NOBODY}


def test_modes_are_kept_to(open_mount: Mount) -> None:
    open_mount.watch()
    folder = open_mount.path / "of root"
    folder.mkdir(0o755)
    secret, public = folder / "secret", folder / "public"
    for path, mode in ((secret, 0o600), (public, 0o644)):
        path.write_bytes(b"content")
        path.chmod(mode)
    assert as_nobody(public.read_bytes) == b"content"
    refused: tuple[Callable[[], object], ...] = (
        secret.read_bytes,
        public.unlink,
        lambda: public.write_bytes(b"other"),
        (folder / "new").touch,
        lambda: public.rename(folder / "moved"),
    )
    assert [as_nobody(lambda call=call: attempt(call)) for call in refused] == ["EACCES"] * len(refused)  # type: ignore[misc]
    assert as_nobody(lambda: attempt(lambda: public.chmod(0o666))) == "EPERM"
    assert as_nobody(lambda: attempt(lambda: os.setxattr(public, "user.x", b"1"))) == "EACCES"
    assert sorted(path.name for path in folder.iterdir()) == ["public", "secret"]


def test_without_allow_other_nobody_else_enters(folder: Path) -> None:
    (folder / "closed").mkdir()
    with closing(Mount(folder / "closed")) as mount:
        mount.start()
        assert as_nobody(lambda: attempt(mount.path.stat)) == "EACCES"
        assert as_nobody(lambda: attempt(lambda: list(mount.path.iterdir()))) == "EACCES"

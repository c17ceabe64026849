"""Mounts for the end-to-end tests. Every mount that a test was given is gone when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.e2e.mounts import MakeMount, Mount


@pytest.fixture
def make_mount(tmp_path: Path) -> Iterator[MakeMount]:
    """Starts any number of mounts, each of a fresh pool."""
    with ExitStack() as stack:

        def make(*options: str, device_size: str = "256MiB") -> Mount:
            folder = tmp_path / f"kvfs-{len(list(tmp_path.glob('kvfs-*')))}"
            folder.mkdir()
            mount = stack.enter_context(closing(Mount(folder, *options, device_size=device_size)))
            mount.start()
            return mount

        yield make


@pytest.fixture
def mount(make_mount: MakeMount) -> Mount:
    """A mount of a fresh pool with the defaults of `kvfs mount`."""
    return make_mount()


@pytest.fixture(scope="module")
def _module_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    with closing(Mount(tmp_path_factory.mktemp("kvfs"))) as mount:
        mount.start()
        yield mount


@pytest.fixture
def shared_mount(_module_mount: Mount) -> Mount:
    """One mount for all tests of a module, each of which works in a directory of its own."""
    _module_mount.revive()
    _module_mount.watch()
    return _module_mount

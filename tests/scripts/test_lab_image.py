"""The cache of images: whole or absent, one per recipe, and where Debian's packages come from."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scripts.lib.lab import image, mirror, recipe
from scripts.lib.lab.build import Tell
from scripts.lib.lab.errors import BuildFailed, Unavailable


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVFS_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path / "cache"


def said(what: str) -> None:
    """Listens to a build."""


def build(folder: Path, tell: Tell) -> None:
    tell("building")
    (folder / "root.img").write_bytes(b"disk")


def test_an_image_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(image, "build", build)
    made = image.ensure(heard.append)
    assert made.disk.read_bytes() == b"disk"
    assert image.ensure(heard.append) == image.current() == made
    assert heard == ["building"]


def test_another_recipe_is_another_image(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "build", build)
    image.ensure(said)
    monkeypatch.setattr(recipe, "PACKAGES", (*recipe.PACKAGES, "hello"))
    monkeypatch.setattr(recipe, "requirements", lambda: ["other"])
    with pytest.raises(Unavailable, match="scripts/lab build"):
        image.current()


def test_a_build_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, tell: Tell) -> None:
        build(folder, tell)
        raise BuildFailed("mirror is gone")

    monkeypatch.setattr(image, "build", fail)
    with pytest.raises(BuildFailed):
        image.ensure(said)
    assert [path.name for path in cache.iterdir()] == [".lock"]
    with pytest.raises(Unavailable):
        image.current()


def test_what_a_killed_build_left_and_what_nobody_uses_is_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".unfinished-x", "old", "recent"):
        (cache / name).mkdir(parents=True)
    long_ago = time.time() - image.UNUSED_SECONDS - 60
    os.utime(cache / "old", (long_ago, long_ago))
    monkeypatch.setattr(image, "build", build)
    made = image.ensure(said)
    assert {path.name for path in cache.iterdir()} == {".lock", "recent", made.folder.name}


def test_only_root_makes_an_image(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="root"):
        image.ensure(said)


def test_the_image_has_what_the_project_depends_on() -> None:
    names = [requirement.split(">")[0] for requirement in recipe.requirements()]
    assert {"trio", "click", "pytest"} <= set(names)
    assert not {"pyfuse3", "ruff", "mypy"} & set(names), "Debian's, and not needed in a guest"


def test_the_environment_names_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mirror.VARIABLE, "file:///mirror")
    assert mirror.source("trixie") == [f"deb [signed-by={mirror.KEYRING}] file:///mirror trixie main"]


@pytest.mark.parametrize(
    "system, expected",
    [
        (
            {"ID": "debian", "VERSION_CODENAME": "bookworm"},
            ["deb [signed-by=KEYRING] file:///first trixie main"],
        ),
        ({"ID": "ubuntu", "VERSION_CODENAME": "noble"}, []),
    ],
    ids=["debian", "ubuntu"],
)
def test_without_it_this_machines_own_is_taken_if_it_has_debian(
    system: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: system)
    monkeypatch.setattr(mirror, "_output", lambda *_: ["file:///first", "file:///second"])
    assert [line.replace(mirror.KEYRING, "KEYRING") for line in mirror.source("trixie")] == expected

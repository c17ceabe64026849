"""What the project says of itself is true: documents, commands, exports, packaging."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import walk_packages

import click
import pytest

import blockdev
import kvfs
import rdma
from kvfs.cli.main import cli

ROOT = Path(__file__).parents[1]
PACKAGES = (blockdev, kvfs, rdma)
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
TOOLS = {"demo", "test"}
"""The two commands that the README must open with."""


def tracked() -> list[Path]:
    """Files that belong to the project, as git knows them; skips the test where it does not."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [
        ROOT / name.decode()
        for name in listing.stdout.split(b"\0")
        if name and (ROOT / name.decode()).is_file()
    ]


def modules() -> dict[str, Path]:
    """Every module of the three packages, by its path without suffix: 'kvfs/cli/main'."""
    return {
        path.relative_to(ROOT).as_posix().removesuffix(".py"): path
        for package in PACKAGES
        for path in (ROOT / package.__name__).rglob("*.py")
        if path.name != "__init__.py"
    }


# ---- documents ------------------------------------------------------------------------------------------------


def pictured() -> dict[str, str]:
    """The module map of docs/architecture.md: path without suffix → its line."""
    text = (ROOT / "docs/architecture.md").read_text()
    picture = re.search(r"^## The modules\n.*?^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert picture, "docs/architecture.md has no module map"
    found: dict[str, str] = {}
    folders: dict[int, str] = {}
    for line in picture[1].splitlines():
        entry = re.match(r"( *)([\w-]+)(/|\.py)\s+(\S.*)", line)
        if not entry:
            assert not line.strip(), f"not an entry of the module map: {line!r}"
            continue
        indent, name, kind, says = entry.groups()
        parent = "".join(folder for depth, folder in sorted(folders.items()) if depth < len(indent))
        if kind == "/":
            folders = {depth: folder for depth, folder in folders.items() if depth < len(indent)}
            folders[len(indent)] = f"{name}/"
        else:
            found[f"{parent}{name}"] = says
    return found


def test_the_picture_shows_every_module_and_no_other() -> None:
    assert sorted(pictured()) == sorted(modules())


def links() -> Iterator[tuple[Path, str]]:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
            if "://" not in target:
                yield document, target


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.name}: {target}"
        for document, target in links()
        if not (document.parent / target.split("#")[0]).exists()
    ]
    assert not broken


def test_the_readme_leads_to_every_document() -> None:
    linked = {target for document, target in links() if document.name == "README.md"}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} <= linked


def shell_lines() -> Iterator[tuple[Path, str]]:
    """Lines of the documents' indented or fenced blocks that call something of ours."""
    for document in DOCUMENTS:
        for block in re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\$ )?(sudo )?(kvfs|(\./)?scripts/\w+)(\s|$)", line):
                    yield document, line.removeprefix("$ ").removeprefix("sudo ")


def command_of(words: list[str]) -> click.Command:
    """The click command that a line of shell names; fails on one that is not there, or on an unknown option."""
    command: click.Command = cli
    rest = words
    while isinstance(command, click.Group):
        while rest and rest[0].startswith("-"):
            rest = rest[1:] if "=" in rest[0] or rest[0] in ("-h", "--help", "--version") else rest[2:]
        if not rest:
            break
        assert rest[0] in command.commands, f"no command {rest[0]!r} in {' '.join(words)!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in rest:
        if word.startswith("--"):
            assert word.split("=")[0] in known | {"--help"}, f"no option {word!r} in {' '.join(words)!r}"
    return command


def test_commands_in_the_documents_exist() -> None:
    lines = list(shell_lines())
    assert lines
    for document, line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "kvfs":
            command_of(words[1:])
        else:
            script = ROOT / words[0]
            assert os.access(script, os.X_OK), f"{document.name}: {line}"


def test_the_readme_opens_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first_block = re.search(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert first_block
    assert re.findall(r"^\./scripts/(\w+)", first_block[1], re.MULTILINE) == sorted(TOOLS)


def commands(group: click.Group, path: str = "kvfs") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize("path, command", list(commands(cli)), ids=str)
def test_every_command_has_help(path: str, command: click.Command) -> None:
    assert command.help, path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts[0]}"


def test_the_changelog_has_the_next_version_on_top() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


# ---- packages -------------------------------------------------------------------------------------------------


def test_version_is_the_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert kvfs.__version__ == version("kvfs") == project["version"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_packages_are_typed_and_documented(package) -> None:
    assert (Path(package.__path__[0]) / "py.typed").exists()
    undocumented = []
    for info in walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith("__main__"):
            module = import_module(info.name)
            for name in getattr(module, "__all__", ()):
                assert hasattr(module, name), f"{info.name} exports {name}, which it does not have"
            if not module.__doc__:
                undocumented.append(info.name)
    assert not undocumented


# ---- habits ---------------------------------------------------------------------------------------------------

FUNCTION_LINES = 60
FILE_LINES = 600


def test_files_are_of_a_size_to_be_read() -> None:
    long = {
        name: lines
        for name, path in modules().items()
        if (lines := path.read_text().count("\n")) > FILE_LINES
    }
    assert not long


LEFTOVERS = re.compile(
    r"\b(TO"
    r"DO|FIX"
    r"ME|XX"
    r"X)\b"  # unfinished
    r"|(?<![\w.])/(home|root|wor"
    r"k|farm)/\w"  # paths of one machine
    r"|\.\./share"
    r"d\b"
)


def test_nothing_unfinished_and_nothing_of_one_machine() -> None:
    found = []
    for path in tracked():
        if path.suffix in {".py", ".md", ".toml", ".sh", ""} and path.name != "LICENSE":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if LEFTOVERS.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found


@pytest.mark.parametrize(
    "script", sorted(p for p in (ROOT / "scripts").iterdir() if p.is_file() and not p.suffix)
)
def test_scripts_are_executable_and_parse(script: Path) -> None:
    assert os.access(script, os.X_OK)
    first = script.read_text().splitlines()[0]
    if first.endswith("bash"):
        subprocess.run(["bash", "-n", script], check=True)

"""What is installed beside the command: man pages, completion, units. All come from one source, or name what exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import click
import pytest
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from kvfs.cli.exit_codes import EXIT_CODES
from kvfs.cli.main import cli
from kvfs.cli.manual import main, pages
from kvfs.export.document import save_exports
from kvfs.export.model import Export, Exports, Namespace, Port
from tests.kvfs.conftest import Kvfs
from tests.kvfs.exporting import HOT
from tests.test_project import ROOT, commands

UNITS = sorted((ROOT / "systemd").glob("*.service"))


def options(command: click.Command) -> set[str]:
    return {
        name
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
        for name in one.opts
    }


def plain(page: str) -> str:
    return page.replace(r"\-", "-")


# ── man pages ────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_command_has_a_page_with_all_its_options() -> None:
    found = pages()
    all_ = {"kvfs": cli, **dict(commands(cli))}
    assert found.keys() == {f"{path.replace(' ', '-')}.1" for path in all_}
    for path, command in all_.items():
        page = plain(found[f"{path.replace(' ', '-')}.1"])
        assert f"\\fB{path}\\fR" in page
        for option in options(command) | {"--help"}:
            assert re.search(rf"\\fB.*{re.escape(option)}\b", page), f"{path} {option}"


def test_the_first_page_has_every_exit_code_and_every_command() -> None:
    page = plain(pages()["kvfs.1"])
    for error, code in EXIT_CODES.items():
        assert f"\\fB{code}\\fR\n{error.__name__}: " in page
    for name in cli.commands:
        assert f"\\fBkvfs-{name}\\fR(1)" in page


def test_pages_are_what_roff_reads(tmp_path: Path) -> None:
    main(tmp_path)
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    result = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    text = re.sub("\x1b\\[[0-9;]*m|.\b", "", result.stdout)
    assert "kvfs mount --size 4GiB /mnt/kv\n" in text, "examples keep their lines"
    assert "--controller-key-file PATH" in text


def test_text_is_never_taken_for_roff() -> None:
    from kvfs.cli.manual import Entry, page

    @click.command(short_help="'quoted' first.")
    def odd() -> None:
        r"""
        .TH is no macro here, and \fB is no font.

        'br is none, either.
        """

    lines = page(Entry(("odd",), click.Context(odd, info_name="odd"))).splitlines()
    assert r"\&.TH is no macro here, and \efB is no font." in lines
    assert r"\&'br is none, either." in lines


# ── completion ───────────────────────────────────────────────────────────────────────────────────────────────


def completed(*words: str) -> list[str]:
    """What is offered for the last of the words."""
    complete = ShellComplete(cli, {}, "kvfs", "_KVFS_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_commands_options_and_values_are_completed() -> None:
    assert completed("p") == ["pool", "prefetch"]
    assert completed("") == list(cli.commands)
    assert completed("pool", "s") == ["status", "scrub"]
    assert completed("export", "add", "--al") == ["--allow-any-host"]
    assert completed("pool", "create", "hot", "--durability", "f") == ["flush"]


def test_names_of_pools_and_exports_are_completed(kvfs: Kvfs) -> None:
    kvfs.make_pool("hot")
    kvfs.make_pool("cold")
    where = ("--state-dir", str(kvfs.state.root))
    assert completed(*where, "pool", "status", "") == ["cold", "hot"]
    assert completed(*where, "pool", "destroy", "h") == ["hot"]
    assert completed("--state-dir", "/nowhere", "pool", "status", "") == []
    file = kvfs.folder / "exports.yaml"
    one = Export(HOT, "s", {1: Namespace(Path("/d"), UUID(int=1), UUID(int=2))}, (Port("tcp", "192.0.2.1"),))
    save_exports(file, Exports({HOT: one}))
    assert completed("export", "remove", "--file", str(file), "nqn.2026") == [HOT]
    assert completed("export", "show", "--file", str(file), "nqn.2027") == []
    file.write_text("nonsense: 1\n")
    assert completed("export", "show", "--file", str(file), "") == []


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete], ids=lambda shell: shell.name)
def test_each_shell_takes_the_source_of_its_completion(shell: type[ShellComplete], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kvfs"],
        env=os.environ | {"_KVFS_COMPLETE": f"{shell.name}_source", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "kvfs" in result.stdout
    assert f"_KVFS_COMPLETE={shell.name}_complete" in result.stdout
    if not shutil.which(shell.name):
        pytest.skip(f"{shell.name} is not installed")
    (tmp_path / "source").write_text(result.stdout)
    subprocess.run([shell.name, "-n", tmp_path / "source"], check=True)


@pytest.mark.parametrize(
    "line, offered",
    [
        ("kvfs exp", ["export"]),
        ("kvfs pool s", ["status", "scrub"]),
        ("kvfs export remove --dr", ["--dry-run"]),
        ("kvfs pool create hot --durability ", ["close", "flush"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], tmp_path: Path) -> None:
    program = tmp_path / "kvfs"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvfs "$@"\n')
    program.chmod(0o755)
    script = f"""
        eval "$(_KVFS_COMPLETE=bash_source kvfs)"
        complete -p kvfs >/dev/null
        COMP_WORDS=({line} {"''" if line.endswith(" ") else ""}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _kvfs_completion kvfs
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "-euc", script],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == offered


# ── units ────────────────────────────────────────────────────────────────────────────────────────────────────


def installed_unit(unit: Path, folder: Path) -> Path:
    """The unit as scripts/install writes it, with a command that exists."""
    program = folder / "kvfs"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    name = unit.name.replace("@.", "@hot.")
    (folder / name).write_text(unit.read_text().replace("@bindir@", str(folder)))
    return folder / name


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", installed_unit(unit, tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    about_it = [line for line in result.stderr.splitlines() if "kvfs" in line]
    assert (result.returncode, about_it) == (0, []), result.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_say_commands_that_exist(unit: Path) -> None:
    from tests.test_project import command_of

    said = re.findall(r"^Exec\w+=-?@bindir@/kvfs (.*)$", unit.read_text(), re.MULTILINE)
    assert said
    for line in said:
        command_of(line.replace("${MOUNT_POINT}", "/mnt").replace("%i", "hot").split())


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────


def installed(root: Path) -> set[str]:
    """Everything below a prefix but the virtual environment's own."""
    files = (path.relative_to(root / "opt/x").as_posix() for path in root.rglob("*") if not path.is_dir())
    return {name for name in files if not name.startswith("lib/kvfs/")}


def install(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts/install", *arguments], capture_output=True, text=True, check=False)


def test_install_says_what_it_takes() -> None:
    assert "--destdir" in install("--help").stdout
    assert install("--prefix", "relative").returncode == 2
    assert install("--colour").returncode == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_is_installed_and_all_is_removed(tmp_path: Path) -> None:
    where = ("--prefix", "/opt/x", "--destdir", str(tmp_path))
    assert install(*where, "--uninstall").returncode == 1
    for _ in range(2):  # the second time it updates
        done = install(*where)
        assert done.returncode == 0, done.stderr
        assert installed(tmp_path) == {
            "bin/kvfs",
            *(f"lib/systemd/system/{unit.name}" for unit in UNITS),
            *(f"share/man/man1/{name}" for name in pages()),
            "share/bash-completion/completions/kvfs",
            "share/zsh/site-functions/_kvfs",
            "share/fish/vendor_completions.d/kvfs.fish",
        }
    home = tmp_path / "opt/x/lib/kvfs"
    assert (home / "bin/kvfs").read_text().startswith("#!/opt/x/lib/kvfs/bin/python\n")
    assert (tmp_path / "opt/x/bin/kvfs").resolve() == home / "bin/kvfs"
    unit = (tmp_path / "opt/x/lib/systemd/system/kvfs-export.service").read_text()
    assert "ExecStart=/opt/x/bin/kvfs export restore\n" in unit
    version = subprocess.run(
        [home / "bin/python", home / "bin/kvfs", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert version.stdout.startswith("kvfs ")
    done = install(*where, "--uninstall")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == set()
    assert not home.exists()

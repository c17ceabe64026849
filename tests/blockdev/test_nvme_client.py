"""nvme-cli as calls: arguments, secrets, and errors in the program's words."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import pytest

from blockdev.errors import FabricsError, FabricsTimeout, KeyRefused, NoNvmeCli
from blockdev.nvme import (
    Completed,
    Credentials,
    HostIdentity,
    NvmeCli,
    Portal,
    Target,
    Timers,
    Transport,
    read_host_identity,
    run_nvme,
    running,
)
from blockdev.nvme.keys import check_key, read_key
from tests.dhchap import secret

HOST = HostIdentity("nqn.host", "1-2-3")
WAY = Portal(Transport.TCP, "192.0.2.1", "4420")
NQN = "nqn.2014-08.org.example:kv"
TARGET = Target(NQN, (WAY,))
KEY = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"


@dataclass
class Scripted:
    """A CommandRunner that gives the answers it was told, in order; `version` it answers itself."""

    answers: list[Completed] = field(default_factory=list)
    version: str = "2.13"
    ran: list[list[str]] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)

    async def __call__(self, arguments: Sequence[str], *, timeout: float, config: str = "") -> Completed:
        assert timeout > 0
        if arguments[0] == "version":
            return Completed(0, f"nvme version {self.version} (git {self.version})\n", "")
        self.ran.append(list(arguments))
        self.configs.append(config)
        return self.answers.pop(0)


def refused(err: str) -> Completed:
    return Completed(1, "", err)


def key_file(folder: Path, text: str = KEY, mode: int = 0o600) -> PurePath:
    path = folder / "host.key"
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


async def test_connect_sets_the_timers_and_says_who_we_are() -> None:
    run = Scripted([Completed(0, '{"device":"nvme3"}', "")])
    timers = Timers(keep_alive=6, reconnect_delay=2, fast_io_fail=7, ctrl_loss=None)
    assert await NvmeCli(run).connect(TARGET, WAY, HOST, timers) == "nvme3"
    words = [
        "connect",
        "-t",
        "tcp",
        "-a",
        "192.0.2.1",
        "-s",
        "4420",
        "-q",
        "nqn.host",
        "-I",
        "1-2-3",
        "-n",
        NQN,
    ]
    assert run.ran == [[*words, "-k", "6", "-c", "2", "-l", "-1", "-o", "json"]]


async def test_loop_has_no_address_and_tls_is_asked_for() -> None:
    run = Scripted([Completed(0, "", "")])
    way = Portal(Transport.LOOP, "", "")
    target = Target(NQN, (way,), Credentials(tls=True))
    assert await NvmeCli(run).connect(target, way, HOST, Timers(ctrl_loss=60)) is None
    assert run.ran[0][:4] == ["connect", "-t", "loop", "-q"]
    assert run.ran[0][run.ran[0].index("-l") :] == ["-l", "60", "--tls", "-o", "json"]


async def test_connected_already_is_no_error() -> None:
    run = Scripted([refused("already connected\n"), refused("x: Operation already in progress\n")])
    cli = NvmeCli(run)
    assert await cli.connect(TARGET, WAY, HOST, Timers()) is None
    assert await cli.connect(TARGET, WAY, HOST, Timers()) is None


@pytest.mark.parametrize("version", ["2.3", "2.13", "3.2"])
async def test_a_key_is_never_an_argument(tmp_path: Path, version: str) -> None:
    run = Scripted([Completed(0, "", "")], version)
    path = key_file(tmp_path)
    target = Target(NQN, (WAY,), Credentials(path, path))
    await NvmeCli(run).connect(target, WAY, HOST, Timers())
    (words,), (config,) = run.ran, run.configs
    assert not any("DHHC" in word for word in words)
    assert running.CONFIG in words
    assert config.count(KEY) >= 2
    if version == "3.2":
        assert words == ["connect-all", "--config", running.CONFIG]
        assert "controller = transport=tcp;traddr=192.0.2.1;trsvcid=4420\n" in config
        assert f"kxchap-secret = {KEY}\n" in config
        assert "ctrl-loss-tmo = -1\n" in config
    else:
        assert words[0] == "connect"
        assert f'"dhchap_ctrl_key": "{KEY}"' in config


@pytest.mark.parametrize(
    "text, mode, message",
    [
        (KEY, 0o640, "others may read it; 'chmod 600"),
        ("secret", 0o600, "not a secret of the form DHHC-1"),
        (f"{KEY}\n{KEY}", 0o600, "not a secret"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(KeyRefused, match=message):
        read_key(Path(key_file(tmp_path, text, mode)))


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyRefused, match="absent: No such file"):
        read_key(tmp_path / "absent")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(KeyRefused, match="fifo: not a file"):
        read_key(tmp_path / "fifo")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_somebody_else(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    os.chown(path, 65534, -1)
    with pytest.raises(KeyRefused, match="belongs to user 65534"):
        read_key(Path(path))


def test_secrets_of_every_hash() -> None:
    check_key(secret(5))
    check_key(secret(5, "01"))
    check_key(KEY)
    for wrong in ("", "DHHC-1:04:AAAA:", "DHHC-2:00:AAAA:", "DHHC-1:00:A:", secret(1)[:-1], secret(1) + "x"):
        with pytest.raises(KeyRefused):
            check_key(wrong)


@pytest.mark.parametrize(
    "err, kind, message",
    [
        (
            "could not add new controller: pre-shared TLS key is missing",
            KeyRefused,
            "prove itself with a DH-HMAC",
        ),
        ("Failed to open /dev/nvme-fabrics: No such file or directory", NoNvmeCli, "modprobe nvme-tcp"),
        ("Failed to open /dev/nvme-fabrics: Permission denied", NoNvmeCli, "needs root"),
        ("Failed to write\nto device", FabricsError, "'nvme connect' failed: Failed to write to device"),
        (
            "connect: unrecognized option '--tls'\n\x1b[1mUsage: nvme connect <device> [OPTIONS]\x1b[0m\n",
            FabricsError,
            "'nvme connect' failed: connect: unrecognized option '--tls'; a newer nvme-cli is needed$",
        ),
        ("", FabricsError, "exit code 1"),
    ],
)
async def test_the_program_is_quoted(err: str, kind: type[FabricsError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        await NvmeCli(Scripted([refused(err)])).connect(TARGET, WAY, HOST, Timers())
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


async def test_a_missing_tls_key_is_told_from_a_missing_secret() -> None:
    target = Target(NQN, (WAY,), Credentials(tls=True))
    with pytest.raises(KeyRefused, match=r"keyring '\.nvme'"):
        await NvmeCli(Scripted([refused("pre-shared TLS key is missing")])).connect(
            target, WAY, HOST, Timers()
        )


async def test_without_the_module_nothing_is_connected() -> None:
    scan = refused("Failed to scan topology: No such file or directory\n")
    cli = NvmeCli(Scripted([scan, scan, scan]))
    assert await cli.list_namespaces() == []
    assert await cli.list_subsystems() == []
    assert await cli.disconnect(NQN) == 0


async def test_disconnecting_tells_how_many_there_were() -> None:
    run = Scripted(
        [
            Completed(0, f"NQN:{NQN} disconnected 0 controller(s)\n", ""),
            Completed(0, f"NQN:{NQN} disconnected 2 controller(s)\n", ""),
            Completed(0, "", ""),
        ]
    )
    cli = NvmeCli(run)
    assert [await cli.disconnect(NQN), await cli.disconnect(NQN)] == [0, 2]
    assert await cli.disconnect_controller("nvme1") == 1
    assert run.ran[2] == ["disconnect", "-d", "nvme1"]


@pytest.mark.parametrize(
    "version, words",
    [
        ("2.13", [["smart-log"], ["id-ctrl"], ["id-ns"], ["list-ns"]]),
        ("3.1", [["log", "smart"], ["id", "ctrl"], ["id", "ns"], ["id", "ns-list"]]),
    ],
)
async def test_commands_that_3_0_grouped(version: str, words: list[list[str]]) -> None:
    run = Scripted([Completed(0, "[", "")] * 4, version)
    cli = NvmeCli(run)
    for call in (cli.smart_log, cli.identify_controller, cli.identify_namespace, cli.active_namespaces):
        with pytest.raises(FabricsError, match="cannot be understood"):
            await call("/dev/nvme1n1")
    assert run.ran == [[*group, "/dev/nvme1n1", "-o", "json"] for group in words]


async def test_3_x_is_told_not_to_stay_connected_to_a_discovery_service() -> None:
    for version, last in (("2.3", "json"), ("3.2", "--persistent=no")):
        run = Scripted([Completed(0, '{"records":[]}', "")], version)
        assert await NvmeCli(run).discover(WAY, HOST) == []
        assert run.ran[0][-1] == last


def test_who_we_are_is_read_from_files(tmp_path: Path) -> None:
    with pytest.raises(
        FabricsError, match=r"hostnqn: No such file or directory; install nvme-cli, whose package makes both"
    ):
        read_host_identity(tmp_path)
    (tmp_path / "hostnqn").write_text("nqn.x\n")
    (tmp_path / "hostid").write_text("\n")
    with pytest.raises(FabricsError, match="is empty"):
        read_host_identity(tmp_path)
    (tmp_path / "hostid").write_text("id\n")
    assert read_host_identity(tmp_path) == HostIdentity("nqn.x", "id")


# ── the program itself ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for `nvme` in $PATH; to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    path = tmp_path / "nvme"
    path.touch(0o755)
    return path


async def test_a_program_is_run_to_its_end(program: Path) -> None:
    program.write_text('#!/bin/sh\nprintf "%s|" "$@" "$LC_ALL"\necho no >&2\nexit 3\n')
    assert await run_nvme(["list", "a b"], timeout=20) == Completed(3, "list|a b|C|", "no\n")


async def test_the_private_configuration_is_a_file_without_a_name(program: Path) -> None:
    program.write_text('#!/bin/sh\ncat "$3"; echo; readlink "$3"\n')
    done = await run_nvme(["connect", "--config", running.CONFIG], timeout=20, config="secret")
    assert done.out.startswith("secret\n/memfd:kvfs-nvme")


async def test_a_program_that_does_not_end_is_killed(program: Path) -> None:
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(FabricsTimeout, match=r"'nvme list' did not end within 0\.1 s"):
        await run_nvme(["list"], timeout=0.1)


async def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(NoNvmeCli, match="install the package nvme-cli"):
        await run_nvme(["list"], timeout=1)

"""nvme-cli's commands as calls. Each has a deadline; what the program refuses is an error with its own words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from blockdev.errors import FabricsError, KeyRefused, NoNvmeCli
from blockdev.nvme import parse
from blockdev.nvme.credentials import HostIdentity, ini_config, json_config, loss_argument
from blockdev.nvme.keys import read_key
from blockdev.nvme.names import Portal, Target, Transport
from blockdev.nvme.records import (
    ControllerIdentity,
    DiscoveryEntry,
    NamespaceEntry,
    NamespaceIdentity,
    SmartLog,
    SubsystemEntry,
    Timers,
)
from blockdev.nvme.running import CONFIG, CommandRunner, Completed, run_nvme

_Result = TypeVar("_Result")

TIMEOUT: Final = 15.0
"""Seconds that a command may take; a connect waits for the network, and for the target to set up its queues."""
_JSON: Final = ("-o", "json")
_NO_MODULE: Final = re.compile(
    r"scan topology|/dev/nvme-fabrics: (?:No such file|No such device)", re.IGNORECASE
)
_ALREADY: Final = re.compile(r"already connected|Operation already in progress", re.IGNORECASE)
_NO_KEY: Final = re.compile(
    r"pre-shared TLS key is missing|Required key not available|errno 126", re.IGNORECASE
)


class NvmeCli:
    """The program `nvme`, whatever version is installed.

    :param run: how it is run
    """

    def __init__(self, run: CommandRunner = run_nvme) -> None:
        self._run = run
        self._version: tuple[int, int] | None = None

    # ── targets ──────────────────────────────────────────────────────────────────────────────────────────

    async def discover(self, portal: Portal, host: HostIdentity) -> list[DiscoveryEntry]:
        """What a discovery service offers to this host, the service itself included. :raises FabricsError:"""
        arguments = ["discover", *_where(portal), *_who(host), *_JSON]
        if await self._major() >= 3:
            arguments.append("--persistent=no")  # else 3.2 may stay connected to the service
        return self._read(await self._checked(arguments), parse.parse_discovery)

    async def connect(
        self, target: Target, portal: Portal, host: HostIdentity, timers: Timers, timeout: float = TIMEOUT
    ) -> str | None:
        """Connect to a target by one way; the controller's name, such as `nvme1`, if the program tells it.

        What is connected already stays as it is: that is no error.

        :raises KeyRefused: a key is missing, or its file cannot be used
        :raises FabricsError: it could not be made; the program says little of why
        """
        command = await self.connect_command(target, portal, host, timers)
        completed = await self._run(command.arguments, timeout=timeout, config=command.config)
        if completed.code and _ALREADY.search(completed.err):
            return None
        if completed.code and _NO_KEY.search(completed.err):
            raise KeyRefused(_no_key(target, portal), _words(completed))
        self._check(command.arguments, completed)
        return self._read(completed.out, parse.parse_connected) if command.tells else None

    async def connect_command(
        self, target: Target, portal: Portal, host: HostIdentity, timers: Timers
    ) -> ConnectCommand:
        """What `connect` would run. :raises KeyRefused: the file of a key cannot be used"""
        credentials = target.credentials
        keys = [
            None if f is None else read_key(Path(f))
            for f in (credentials.host_key, credentials.controller_key)
        ]
        tls = ["--tls"] if credentials.tls else []
        options = [
            *_where(portal), *_who(host), "-n", target.nqn,
            "-k", str(timers.keep_alive), "-c", str(timers.reconnect_delay), "-l", loss_argument(timers), *tls,
        ]  # fmt: skip
        if not any(keys):
            return ConnectCommand(["connect", *options, *_JSON], "", tells=True)
        if await self._major() >= 3:
            config = ini_config(target, portal, host, timers, keys)
            return ConnectCommand(["connect-all", "--config", CONFIG], config, tells=False)
        config = json_config(target, portal, host, keys)
        return ConnectCommand(["connect", *options, "--config", CONFIG, *_JSON], config, tells=True)

    async def disconnect(self, nqn: str) -> int:
        """End every connection to a subsystem; how many there were. :raises FabricsError:"""
        return await self._disconnect(["disconnect", "-n", nqn])

    async def disconnect_controller(self, name: str) -> int:
        """End one connection; 1, or 0 if there is none of that name. :raises FabricsError:"""
        return await self._disconnect(["disconnect", "-d", name])

    async def _disconnect(self, arguments: list[str]) -> int:
        completed = await self._run(arguments, timeout=TIMEOUT)
        if completed.code and _NO_MODULE.search(completed.err):
            return 0
        self._check(arguments, completed)
        told = re.search(r"disconnected (\d+)", completed.out + completed.err)
        return int(told[1]) if told else 1

    # ── what is connected ────────────────────────────────────────────────────────────────────────────────

    async def list_namespaces(self) -> list[NamespaceEntry]:
        """Every namespace that is a block device here. :raises FabricsError:"""
        return await self._listed(["list", *_JSON], parse.parse_namespaces)

    async def list_subsystems(self) -> list[SubsystemEntry]:
        """Every subsystem that this host is connected to, local drives included. :raises FabricsError:"""
        return await self._listed(["list-subsys", *_JSON], parse.parse_subsystems)

    async def identify_controller(self, device: str) -> ControllerIdentity:
        """Of `nvme1`, or of a namespace's block device. :raises FabricsError:"""
        return self._read(await self._asked("id", "ctrl", device), parse.parse_controller)

    async def identify_namespace(self, device: str) -> NamespaceIdentity:
        """Of a block device, such as `nvme1n1`. :raises FabricsError:"""
        return self._read(await self._asked("id", "ns", device), parse.parse_namespace)

    async def active_namespaces(self, controller: str) -> list[int]:
        """The numbers of those that a controller offers, whether this kernel has found them yet or not.

        :raises FabricsError:
        """
        words = ["id", "ns-list"] if await self._major() >= 3 else ["list-ns"]
        return self._read(await self._of(words, controller), parse.parse_active)

    async def smart_log(self, device: str) -> SmartLog:
        """:raises FabricsError: also of targets that have none"""
        return self._read(await self._asked("log", "smart", device), parse.parse_smart)

    async def _listed(self, arguments: list[str], read: Callable[[str], list[_Result]]) -> list[_Result]:
        completed = await self._run(arguments, timeout=TIMEOUT)
        if completed.code and _NO_MODULE.search(completed.err):
            return []  # there is no nvme module in this kernel, so nothing is connected
        self._check(arguments, completed)
        return self._read(completed.out, read)

    async def _asked(self, group: str, what: str, device: str) -> str:
        # 3.0 made groups of the commands: `id-ctrl` became `id ctrl`, `smart-log` became `log smart`.
        old = f"{group}-{what}" if group == "id" else f"{what}-{group}"
        return await self._of([group, what] if await self._major() >= 3 else [old], device)

    async def _of(self, words: list[str], device: str) -> str:
        return await self._checked([*words, f"/dev/{device.removeprefix('/dev/')}", *_JSON])

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────

    async def _major(self) -> int:
        if self._version is None:
            self._version = self._read(await self._checked(["version"]), parse.parse_version)
        return self._version[0]

    async def _checked(self, arguments: list[str]) -> str:
        completed = await self._run(arguments, timeout=TIMEOUT)
        self._check(arguments, completed)
        return completed.out

    @staticmethod
    def _check(arguments: list[str], completed: Completed) -> None:
        if not completed.code:
            return
        words = _words(completed)
        if _NO_MODULE.search(completed.err):
            raise NoNvmeCli(
                "this kernel has no NVMe over fabrics: load its module ('modprobe nvme-tcp' or 'nvme-rdma'), as root",
                words,
            )
        if "Permission denied" in completed.err or "must be root" in completed.err.lower():
            raise NoNvmeCli(f"'nvme {arguments[0]}' needs root: {words}", words)
        if "unrecognized option" in words:
            words += "; a newer nvme-cli is needed"
        raise FabricsError(f"'nvme {arguments[0]}' failed: {words}", words)

    @staticmethod
    def _read(text: str, read: Callable[[str], _Result]) -> _Result:
        try:
            return read(text)
        except parse.Unreadable as error:
            raise FabricsError(f"what 'nvme' printed cannot be understood: {error}", text[:200]) from error


@dataclass(frozen=True, slots=True)
class ConnectCommand:
    """A `connect`, ready to run.

    :ivar config: with the secrets; empty without any
    :ivar tells: it prints the controller's name
    """

    arguments: list[str]
    config: str
    tells: bool


def _where(portal: Portal) -> list[str]:
    if portal.transport is Transport.LOOP:
        return ["-t", "loop"]
    return ["-t", portal.transport.value, "-a", portal.address, "-s", portal.service]


def _who(host: HostIdentity) -> list[str]:
    return ["-q", host.nqn, "-I", host.id]


def _words(completed: Completed) -> str:
    """What the program said, on one line, without the page of help that follows a mistake."""
    said = re.split(r"(?:\x1b\[1m)?Usage: nvme", completed.err or completed.out)[0]
    return " ".join(said.split()) or f"exit code {completed.code}"


def _no_key(target: Target, portal: Portal) -> str:
    if target.credentials.tls:
        return (
            f"{portal}: the kernel has no TLS key for {target.nqn}: put it into the keyring '.nvme' with nvme-cli, and "
            "see that tlshd runs"
        )
    return (
        f"{portal}: {target.nqn} wants this host to prove itself with a DH-HMAC-CHAP key: give the file that it is in "
        "(--host-key, or host_key in the configuration)"
    )

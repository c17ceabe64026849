"""From the names of a pool's devices to what can be opened: namespaces are connected and found, paths are what they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blockdev.errors import FabricsError
from blockdev.nvme import NamespaceName, Timers
from kvfs import targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvfs.config import Config, DeviceName


def settings_of(config: Config) -> targets.Settings:
    """How a pool wants its connections to be."""
    timers = Timers(config.keep_alive, config.reconnect_delay, config.fast_io_fail, config.ctrl_loss)
    return targets.Settings(timers, config.io_timeout)


async def locate(
    names: Sequence[DeviceName], settings: targets.Settings, *, connect: bool = True
) -> list[Path | FabricsError]:
    """Where each device is opened, or why it is not there.

    :param connect: connect to the targets that are needed; else only what is connected is found
    """
    namespaces = [name for name in names if isinstance(name, NamespaceName)]
    if not namespaces:
        return [name for name in names if isinstance(name, Path)]
    fabric = targets.fabric()
    found = await fabric.attach(namespaces, settings) if connect else {n: fabric.find(n) for n in namespaces}
    return [name if isinstance(name, Path) else found[name] for name in names]


def known_path(name: DeviceName) -> Path | None:
    """Where a device is, without connecting to anything; None if it is not there."""
    if isinstance(name, Path):
        return name
    found = targets.fabric().find(name)
    return found if isinstance(found, Path) else None

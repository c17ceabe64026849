"""Options and argument types that several commands share."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockdev.nvme import is_uri
from kvfs.cli.render import Style
from kvfs.config import Address, DeviceName, parse_address, parse_device
from kvfs.errors import ConfigError
from kvfs.provision import extent_class
from kvfs.sizes import parse_size
from kvfs.state import StateDirectory, check_pool_name, default_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvfs.cli.render import Column

Chosen = tuple[str, ...] | None

if TYPE_CHECKING:
    ParameterType = click.ParamType[Any, Any]
else:
    ParameterType = click.ParamType  # generic only since click 8.4, and only for type checkers


class Group(click.Group):
    """Lists its commands in the order in which they were added, which is the order one meets them in."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Size(ParameterType):
    """Bytes with a unit, such as 4GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 (click's)
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class ExtentSize(Size):
    """One of the sizes that extents can have."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 (click's)
        size = super().convert(value, param, ctx)
        try:
            extent_class(size)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return size


class PoolName(ParameterType):
    """A name that a pool may have."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 (click's)
        try:
            return check_pool_name(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def complete_pool(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The pools of this host, for whoever presses the tabulator key."""
    chosen: Path | None = context.find_root().params.get("state_dir")
    state = StateDirectory(chosen or default_root(os.environ, os.geteuid()))
    try:
        return [folder.name for folder in state if folder.name.startswith(incomplete)]
    except OSError:
        return []


class AddressType(ParameterType):
    """Where to listen."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:  # noqa: ANN401 (click's)
        if isinstance(value, Address):
            return value
        try:
            return parse_address(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Parsed(ParameterType):
    """Whatever a function reads that raises ValueError, with a reason, for what it cannot."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:  # noqa: ANN401 (click's)
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def named_device(text: str) -> DeviceName:
    """A device on the command line: a path, or a namespace's URI. :raises ValueError: with a reason for people"""
    return parse_device(text) if is_uri(text) else Path(text)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object with exact numbers.")


def styled(columns: Sequence[Column]) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Add -H, -p, -o and --json to a command, which gets them as one argument `style`."""
    names = ", ".join(column.key for column in columns)

    def decorate(command: Callable[..., int | None]) -> Callable[..., int | None]:
        @json_option
        @click.option(
            "-o", "chosen", metavar="COLUMN,…", callback=_columns(columns), help=f"Show these: {names}."
        )
        @click.option("-p", "exact", is_flag=True, help="Exact numbers.")
        @click.option("-H", "bare", is_flag=True, help="No header, one tab between columns.")
        @functools.wraps(command)
        def styled_command(
            *arguments: object, as_json: bool, chosen: Chosen, exact: bool, bare: bool, **options: object
        ) -> int | None:
            style = Style(json=as_json, bare=bare, exact=exact, columns=chosen)
            return command(*arguments, style=style, **options)

        return styled_command

    return decorate


def _columns(columns: Sequence[Column]) -> Callable[[click.Context, click.Parameter, str | None], Chosen]:
    known = [column.key for column in columns]

    def check(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Chosen:
        if value is None:
            return None
        chosen = tuple(value.split(","))
        for key in chosen:
            if key not in known:
                raise click.BadParameter(f"no column '{key}', there are {', '.join(known)}")
        return chosen

    return check

"""kvfs: context memory for LLM serving. The product: mount, Cache API, configuration, control and command line."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfs.cache import Block, Cache, Namespace
    from kvfs.embed import open_cache

__all__ = ["Block", "Cache", "Namespace", "__version__", "open_cache"]

__version__ = version("kvfs")

_HOMES = {
    "Block": "kvfs.cache",
    "Cache": "kvfs.cache",
    "Namespace": "kvfs.cache",
    "open_cache": "kvfs.embed",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what a module has
    """What engines use, imported when they do: the command needs none of it to start."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvfs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""kvfs: context memory for LLM serving. The product: mount, configuration, control and command line."""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("kvfs")

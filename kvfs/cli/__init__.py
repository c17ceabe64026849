"""The `kvfs` command: one file a noun, `render` the only formatter, `exit_codes` the only table of exit codes."""

from __future__ import annotations

from kvfs.cli.main import main

__all__ = ["main"]

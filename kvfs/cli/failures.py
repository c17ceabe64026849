"""Errors in words: what main and the daemon tell of what went wrong."""

from __future__ import annotations

from blockdev.errors import BlockError
from kvfs.errors import KvfsError

EXPECTED = (BlockError, KvfsError, OSError)
"""What may go wrong. Anything else is a mistake of ours and shows its traceback."""


def expected(error: BaseException) -> Exception | None:
    """The error itself, or the first of a nest of groups (what trio's nurseries make of one); None if unexpected."""
    if isinstance(error, ExceptionGroup):
        ours, others = error.split(EXPECTED)
        return None if ours is None or others is not None else _first(ours)
    return error if isinstance(error, EXPECTED) else None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: Exception) -> str:
    """One line for people; errors of the system name their file first."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__

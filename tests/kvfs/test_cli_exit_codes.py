from __future__ import annotations

from collections.abc import Iterator

import pytest

import kvfs.errors
from blockdev.errors import BlockError, DeviceError, NoSpace, PoolBusy
from kvfs.cli import exit_codes
from kvfs.errors import KvfsError, RemoteError


def subclasses(base: type[Exception]) -> Iterator[type[Exception]]:
    yield base
    for derived in base.__subclasses__():
        yield from subclasses(derived)


def ours() -> list[type[Exception]]:
    found = [*subclasses(BlockError), *subclasses(KvfsError)]
    return [error for error in found if error.__module__.split(".")[0] in {"blockdev", "kvfs"}]


@pytest.mark.parametrize("error", ours(), ids=lambda error: error.__name__)
def test_every_class_has_its_own_code(error: type[Exception]) -> None:
    code = exit_codes.EXIT_CODES[error]
    if error in (BlockError, KvfsError):
        assert code == 1
    else:
        assert [other for other, taken in exit_codes.EXIT_CODES.items() if taken == code] == [error]
    assert 0 < code < 126, "0 is success; the shell uses 126 and up"
    assert code != exit_codes.USAGE


def test_the_table_holds_nothing_else() -> None:
    assert set(exit_codes.EXIT_CODES) == {*ours(), OSError}


def test_names_are_unique_since_they_travel_over_the_control_socket() -> None:
    names = [error.__name__ for error in exit_codes.EXIT_CODES]
    assert len(names) == len(set(names))


def test_a_class_without_a_code_counts_as_its_parent() -> None:
    class Special(DeviceError):
        pass

    assert exit_codes.exit_code(Special("d", 5, "x")) == exit_codes.EXIT_CODES[DeviceError]
    assert exit_codes.exit_code(FileNotFoundError(2, "x")) == exit_codes.EXIT_CODES[OSError]
    assert exit_codes.exit_code(RuntimeError()) == 1


def test_a_remote_error_counts_as_what_it_was_there() -> None:
    assert exit_codes.exit_code(RemoteError("PoolBusy", "x")) == exit_codes.EXIT_CODES[PoolBusy]
    assert exit_codes.exit_code(RemoteError("NoSpace", "x")) == exit_codes.EXIT_CODES[NoSpace]
    assert exit_codes.exit_code(RemoteError("FileExistsError", "x")) == exit_codes.EXIT_CODES[OSError]
    assert exit_codes.exit_code(RemoteError("FromTheFuture", "x")) == exit_codes.EXIT_CODES[RemoteError]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = kvfs.errors.__doc__ or ""
    for error in subclasses(KvfsError):
        if error.__module__ == "kvfs.errors":
            assert f" {error.__name__} " in drawn or f" {error.__name__}\n" in drawn

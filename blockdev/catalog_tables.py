"""Tables of bytes in one LMDB environment, for one thread; another may read while that one waits. The only importer of
lmdb.

An environment may be open only once in a process, so whoever reads what another object of this process writes shares
it, and sees what was committed.

Changes gather in one write transaction; reads go through it while it is open. LMDB runs without sync: what is committed
survives kill -9 but not a power loss.
"""

from __future__ import annotations

import errno
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import lmdb

if TYPE_CHECKING:
    from lmdb import Environment, Transaction

COMMIT_AFTER: Final = 0.005
"""Seconds that changes may wait for their commit."""

CHANGES_MAX: Final = 20_000
"""Changes in one transaction, about: each may hold a page in memory until the commit."""

_DATA, _LOCK = "data.mdb", "lock.mdb"
_MAX_READERS = 1024
_DAMAGE: Final = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, lmdb.PageNotFoundError)
_NUMBER = struct.Struct(">Q")

P = ParamSpec("P")
R = TypeVar("R")


class DamagedTables(Exception):
    """What is in the folder cannot be used; never leaves the catalogue."""


def _translated(method: Callable[Concatenate[Tables, P], R]) -> Callable[Concatenate[Tables, P], R]:
    """LMDB's errors become OSError; the changes since the last commit are lost."""

    @functools.wraps(method)
    def call(self: Tables, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except lmdb.Error as error:
            self.failed = True
            if threading.get_ident() == self._thread:  # LMDB's lock is its; another one only reads
                self.abandon()
            raise _os_error(error, self._path) from error

    return call


def _os_error(error: lmdb.Error, path: Path) -> OSError:
    # LMDB's own codes are negative, the system's are positive; older bindings have neither.
    code = getattr(error, "code", 0)
    return OSError(code if code > 0 else errno.EIO, str(error), str(path))


class Tables:
    """One environment. Any call may raise OSError.

    :ivar failed: a call did, so changes were lost
    :raises DamagedTables: it is not LMDB's, is cut short, or lacks tables
    :raises FileNotFoundError: it is not there and not to be created
    :raises OSError: the folder or file cannot be used
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        map_size: int,
        create: bool = False,
        readonly: bool = False,
    ) -> None:
        path = folder / _DATA
        if not create and not path.stat().st_size:
            raise DamagedTables(f"{path} is empty")
        self._shared = _share(folder, names, map_size, create=create, readonly=readonly)
        self._environment = self._shared.environment
        self._tables = self._shared.tables
        self._readonly = readonly
        self._thread = threading.get_ident()
        self.failed = False
        self._path = path
        self._inode = path.stat().st_ino
        self._changes = 0  # in the open transaction
        self._numbers: dict[str, int] = {}  # by table, the last one given by `append`
        self._writing: Transaction[bytes] | None = None
        self._writing_since: float | None = None

    @staticmethod
    def delete(folder: Path) -> None:
        """Remove the files without opening them. Processes that read them keep what they have. :raises OSError:"""
        # Both, or a new environment would take over the old one's transaction number from the lock file.
        (folder / _DATA).unlink(missing_ok=True)
        (folder / _LOCK).unlink(missing_ok=True)

    def close(self) -> None:
        """Changes that were not committed are lost."""
        self.abandon()
        self._shared.users -= 1
        if not (self._readonly and (self._shared.users or self._shared.writable)):
            _forget(self._path.parent, self._shared)

    def drop(self) -> None:
        """Close at once, as the end of the process would: for tests of that."""
        self.abandon()
        _forget(self._path.parent, self._shared)

    @property
    def is_closed(self) -> bool:
        """Whether somebody else in this process has closed the environment."""
        return self._shared.closed

    @property
    def is_current(self) -> bool:
        """Whether the files are still those in the folder, and nobody in this process has closed them."""
        try:
            same = self._path.stat().st_ino == self._inode
        except OSError:
            return False
        return same and not self._shared.closed

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    @_translated
    def get(self, table: str, key: bytes) -> bytes | None:
        transaction = self._begin()
        try:
            return transaction.get(key, db=self._tables[table])
        finally:
            self._end(transaction)

    @_translated
    def follow(self, table: str, key: bytes, target: str) -> bytes | None:
        """What `target` has under the key that `table` has under `key`; both as of one moment."""
        transaction = self._begin()
        try:
            link = transaction.get(key, db=self._tables[table])
            return None if link is None else transaction.get(link, db=self._tables[target])
        finally:
            self._end(transaction)

    @_translated
    def items_behind(self, table: str, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` entries whose key is greater than `after`, in the order of their keys."""
        transaction = self._begin()
        try:
            with transaction.cursor(self._tables[table]) as cursor:
                if not cursor.set_range(after):
                    return []
                if cursor.key() == after and not cursor.next():
                    return []
                return list(islice(cursor.iternext(keys=True, values=True), limit))
        finally:
            self._end(transaction)

    @_translated
    def last_key(self, table: str) -> bytes | None:
        """The greatest key."""
        transaction = self._begin()
        try:
            with transaction.cursor(self._tables[table]) as cursor:
                return cursor.key() if cursor.last() else None
        finally:
            self._end(transaction)

    @_translated
    def last_with_prefix(self, table: str, prefix: bytes, limit: int) -> list[bytes]:
        """The greatest keys with a prefix, the greatest first, at most `limit`; none has more than 64 bytes behind it."""
        transaction = self._begin()
        try:
            with transaction.cursor(self._tables[table]) as cursor:
                if not (cursor.prev() if cursor.set_range(prefix + b"\xff" * 65) else cursor.last()):
                    return []
                keys = cursor.iterprev(keys=True, values=False)
                return list(islice(takewhile(lambda key: key.startswith(prefix), keys), limit))
        finally:
            self._end(transaction)

    @_translated
    def followed_behind(
        self, table: str, after: bytes, prefix: bytes, limit: int, target: str
    ) -> list[tuple[bytes, bytes | None]]:
        """Up to `limit` keys that are greater than `after` and have the prefix, in order, each with what `follow` says."""
        transaction = self._begin()
        try:
            with transaction.cursor(self._tables[table]) as cursor:
                if not cursor.set_range(after) or (cursor.key() == after and not cursor.next()):
                    return []
                links = islice(cursor.iternext(keys=True, values=True), limit)
                rows = self._tables[target]
                return [
                    (key, transaction.get(link, db=rows))
                    for key, link in takewhile(lambda item: item[0].startswith(prefix), links)
                ]
        finally:
            self._end(transaction)

    @_translated
    def count(self, table: str) -> int:
        transaction = self._begin()
        try:
            return transaction.stat(self._tables[table])["entries"]
        finally:
            self._end(transaction)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────

    @_translated
    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._write().put(key, value, db=self._tables[table])

    @_translated
    def append(self, table: str, value: bytes) -> bytes:
        """Put under the next number, which is greater than every key of the table; returns that key."""
        transaction = self._write()
        number = self._numbers.get(table)
        if number is None:
            with transaction.cursor(self._tables[table]) as cursor:
                number = _NUMBER.unpack(cursor.key())[0] if cursor.last() else 0
        self._numbers[table] = number + 1
        key = _NUMBER.pack(number + 1)
        transaction.put(key, value, db=self._tables[table], append=True)  # leaves the page before it full
        return key

    @_translated
    def replace(self, table: str, key: bytes, value: bytes) -> bytes | None:
        """Put, and return what was there."""
        return self._write().replace(key, value, db=self._tables[table])

    @_translated
    def pop(self, table: str, key: bytes) -> bytes | None:
        """Delete, and return what was there."""
        return self._write().pop(key, db=self._tables[table])

    @_translated
    def empty(self, table: str) -> None:
        self._write().drop(self._tables[table], delete=False)

    @property
    def has_changes(self) -> bool:
        """Whether something waits for its commit."""
        return self._writing is not None

    @_translated
    def commit(self) -> None:
        """Make all changes durable against kill -9."""
        if self._writing is not None:
            transaction, self._writing, self._writing_since = self._writing, None, None
            self._changes = 0
            transaction.commit()

    def commit_due(self, now: float) -> bool:
        """Commit if changes have waited for `COMMIT_AFTER` since the first call that saw them. Whether it did."""
        if self._writing is None:
            return False
        if self._writing_since is None:
            self._writing_since = now
        if now - self._writing_since < COMMIT_AFTER:
            return False
        self.commit()
        return True

    def commit_if_large(self) -> None:
        """Commit if there are so many changes that the transaction takes much memory, as in a rebuild."""
        if self._changes >= CHANGES_MAX:
            self.commit()

    def abandon(self) -> None:
        """Forget the changes since the last commit."""
        if self._writing is not None:
            transaction, self._writing, self._writing_since = self._writing, None, None
            with suppress(lmdb.Error):  # it failed before: there is nothing more to lose
                transaction.abort()

    @_translated
    def sync(self) -> None:
        """Make what was committed durable against power loss."""
        self._environment.sync(True)  # noqa: FBT003 - LMDB takes it by position

    @_translated
    def reader_check(self) -> int:
        """Give up what readers that died still hold; how many there were."""
        return self._environment.reader_check()

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> Transaction[bytes]:
        return self._environment.begin() if self._writing is None else self._writing

    def _end(self, transaction: Transaction[bytes]) -> None:
        if transaction is not self._writing:
            transaction.abort()

    def _write(self) -> Transaction[bytes]:
        if self._writing is None:
            self._writing = self._environment.begin(write=True)
            self._changes = 0
        self._changes += 1
        return self._writing


@dataclass(slots=True)
class _Shared:
    """An environment that this process has open."""

    environment: Environment
    writable: bool
    tables: dict[str, Any]
    users: int = 1
    closed: bool = False


_OPEN: Final[dict[Path, _Shared]] = {}


def _share(folder: Path, names: Sequence[str], map_size: int, *, create: bool, readonly: bool) -> _Shared:
    """
    :raises DamagedTables, OSError:
    """
    folder = folder.absolute()
    there = _OPEN.get(folder)
    if there is not None and readonly:
        there.users += 1
        return there
    if there is not None:
        _forget(folder, there)  # who reads it finds it closed, and shares this one
    try:
        environment = _open(folder, len(names), map_size, create=create, readonly=readonly)
    except _DAMAGE as error:
        raise DamagedTables(str(error)) from error
    except lmdb.Error as error:
        raise _os_error(error, folder / _DATA) from error
    try:
        _check_length(environment, folder / _DATA)
        tables = {name: environment.open_db(name.encode(), create=create and not readonly) for name in names}
    except (lmdb.Error, DamagedTables) as error:
        environment.close()
        raise DamagedTables(str(error)) from error
    shared = _OPEN[folder] = _Shared(environment, not readonly, tables)
    return shared


def _forget(folder: Path, shared: _Shared) -> None:
    if not shared.closed:
        shared.closed = True
        _OPEN.pop(folder.absolute(), None)
        shared.environment.close()


def _open(folder: Path, tables: int, map_size: int, *, create: bool, readonly: bool) -> Environment:
    return lmdb.open(
        str(folder),
        map_size=map_size,
        max_dbs=tables,
        max_readers=_MAX_READERS,
        max_spare_txns=2,
        sync=False,
        metasync=False,
        readahead=False,
        mode=0o600,
        create=create,
        readonly=readonly,
    )


def _check_length(environment: Environment, path: Path) -> None:
    # LMDB maps the file and believes its root: a page behind the end of the file would be a SIGBUS, not an error.
    pages = environment.info()["last_pgno"] + 1
    if path.stat().st_size < pages * environment.stat()["psize"]:
        raise DamagedTables(f"{path} is shorter than its {pages} pages")

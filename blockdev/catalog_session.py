"""What a catalogue remembers of the last time it was open, in a small file beside its tables. Replaced atomically."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from blockdev.layout import DESCRIPTOR_VERSION

CATALOG_VERSION = 3
"""Of the tables and of the session file. The records in them have `layout.DESCRIPTOR_VERSION`; both must agree."""

_NAME = "session.json"


@dataclass(frozen=True, slots=True)
class Session:
    """The state in which a catalogue was opened or closed."""

    boot_id: str
    clean: bool
    """Closed, with the tables and this file durable against power loss."""
    sequences: dict[UUID, int]
    """Of each device's superblock."""

    def encode(self, pool: UUID) -> bytes:
        fields = {
            "version": [CATALOG_VERSION, DESCRIPTOR_VERSION],
            "pool": str(pool),
            "boot_id": self.boot_id,
            "clean": self.clean,
            "sequences": {str(device): number for device, number in self.sequences.items()},
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, pool: UUID) -> Session | None:
        """None if it is damaged, of another version or of another pool."""
        try:
            fields = json.loads(data)
            if fields["version"] != [CATALOG_VERSION, DESCRIPTOR_VERSION] or UUID(fields["pool"]) != pool:
                return None
            sequences = {UUID(device): int(number) for device, number in fields["sequences"].items()}
            return cls(str(fields["boot_id"]), fields["clean"] is True, sequences)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    @classmethod
    def load(cls, folder: Path, pool: UUID) -> Session | None:
        """None if there is none that is valid. :raises OSError: it cannot be read"""
        try:
            return cls.decode((folder / _NAME).read_bytes(), pool)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def store(self, folder: Path, pool: UUID) -> None:
        """Durable when it returns. :raises OSError: the old one still counts"""
        draft = folder / (_NAME + ".new")
        with draft.open("wb") as file:
            file.write(self.encode(pool))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _NAME)
        _sync_folder(folder)

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove it, durably, so that the tables are not believed any more. :raises OSError:"""
        (folder / _NAME).unlink(missing_ok=True)
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

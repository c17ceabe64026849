"""Archives as the kernel unpacks them at boot (cpio, format newc): what the initial RAM disk is. Pure."""

from __future__ import annotations

import stat
from collections.abc import Mapping

DIRECTORY = stat.S_IFDIR | 0o755
PROGRAM = stat.S_IFREG | 0o755
_TRAILER = "TRAILER!!!"


def archive(folders: list[str], files: Mapping[str, bytes]) -> bytes:
    """An archive with these directories, parents first, and these files, all of them executable."""
    entries = [(name, DIRECTORY, b"") for name in folders]
    entries += [(name, PROGRAM, content) for name, content in files.items()]
    entries.append((_TRAILER, 0, b""))
    return b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))


def _entry(inode: int, name: str, mode: int, content: bytes) -> bytes:
    path = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, checksum (unused)
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return _padded(head) + _padded(content)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)

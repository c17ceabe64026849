"""Secrets for DH-HMAC-CHAP, as nvme-cli writes them: `DHHC-1:HASH:BASE64:`. They come from files, never from argv."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from pathlib import Path
from typing import Final

from blockdev.errors import KeyRefused

_FORM: Final = re.compile(r"DHHC-1:(0[0-3]):([A-Za-z0-9+/]+={0,2}):")
_LENGTHS: Final = {"00": (32, 48, 64), "01": (32,), "02": (48,), "03": (64,)}
"""Bytes of the secret, by the hash that it was transformed with."""
_CHECKSUM: Final = 4
_LARGEST: Final = 4096
_MAKE: Final = "make one with 'nvme gen-dhchap-key'"


def read_key(path: Path) -> str:
    """The secret in a file that it is alone in, and that nobody but us and root may read or change.

    :raises KeyRefused: it cannot be read, is somebody else's, others may read it, or what it holds is no secret
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read(_LARGEST).decode("ascii", "replace").strip()
    except OSError as error:
        raise KeyRefused(f"key file {path}: {error.strerror}") from error
    try:
        check_key(text)
    except KeyRefused as error:
        raise KeyRefused(f"key file {path}: {error}") from None
    return text


def check_key(text: str) -> None:
    """Never shows what it refuses.

    :raises KeyRefused:
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise KeyRefused(f"not a secret of the form DHHC-1:HASH:BASE64:; {_MAKE}")
    try:
        raw = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        raise KeyRefused(f"its secret is not base64; {_MAKE}") from None
    secret, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
    if len(secret) not in _LENGTHS[match[1]]:
        raise KeyRefused(f"its secret has {len(secret)} bytes, which is not what its hash needs; {_MAKE}")
    if binascii.crc32(secret).to_bytes(_CHECKSUM, "little") != checksum:
        raise KeyRefused("the checksum of its secret is wrong: it was not copied whole")


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting for somebody who writes into a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyRefused(f"key file {path}: not a file")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise KeyRefused(
            f"key file {path}: others may read it; 'chmod 600 {path}', and better make a new one"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise KeyRefused(
            f"key file {path}: it belongs to user {status.st_uid}, who may change it; 'chown root {path}'"
        )

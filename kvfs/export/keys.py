"""Secrets for DH-HMAC-CHAP, as nvme-cli writes them: `DHHC-1:HASH:BASE64:`. They come from files, never from argv."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from kvfs.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_FORM: Final = re.compile(r"DHHC-1:(0[0-3]):([A-Za-z0-9+/]+={0,2}):")
_LENGTHS: Final = {"00": (32, 48, 64), "01": (32,), "02": (48,), "03": (64,)}
"""Bytes of the secret, by the hash that it was transformed with."""
_CHECKSUM: Final = 4
_LARGEST: Final = 4096
_MAKE: Final = "make one with 'nvme gen-dhchap-key'"


def read_key(path: Path) -> str:
    """The secret in a file that nobody else may read.

    :raises ConfigError: it cannot be read, others may read it, or what it holds is no secret
    """
    try:
        with path.open("rb") as file:
            _check_private(path, file.fileno())
            text = file.read(_LARGEST).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror}") from error
    try:
        check_key(text)
    except ConfigError as error:
        raise ConfigError(f"key file {path}: {error}") from None
    return text


def check_key(text: str) -> None:
    """Never shows what it refuses.

    :raises ConfigError:
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"not a secret of the form DHHC-1:HASH:BASE64:; {_MAKE}")
    try:
        raw = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        raise ConfigError(f"its secret is not base64; {_MAKE}") from None
    secret, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
    if len(secret) not in _LENGTHS[match[1]]:
        raise ConfigError(f"its secret has {len(secret)} bytes, which is not what its hash needs; {_MAKE}")
    if binascii.crc32(secret).to_bytes(_CHECKSUM, "little") != checksum:
        raise ConfigError("the checksum of its secret is wrong: it was not copied whole")


def _check_private(path: Path, descriptor: int) -> None:
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
        raise ConfigError(f"key file {path}: others may read it; 'chmod 600 {path}'")

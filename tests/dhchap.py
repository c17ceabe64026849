"""Secrets for DH-HMAC-CHAP."""

from __future__ import annotations

import base64
import binascii


def secret(byte: int, kind: str = "00") -> str:
    """A valid secret: 32 times this byte."""
    raw = bytes([byte]) * 32
    checksum = binascii.crc32(raw).to_bytes(4, "little")
    return f"DHHC-1:{kind}:{base64.b64encode(raw + checksum).decode()}:"

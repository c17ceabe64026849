"""Sizes that guests are made with; bytes."""

from __future__ import annotations

MIB = 1 << 20
STATE = 64 * MIB

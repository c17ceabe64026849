"""Sizes as people write them. Units are powers of 1024: KiB, MiB, GiB, TiB, PiB, or their first letters alone.

KB, MB and so on are refused: half of the world's tools mean 1000 by them, the others 1024.
"""

from __future__ import annotations

import re
from fractions import Fraction

from kvfs.errors import ConfigError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTOR = {name.lower(): 1024**power for power, name in enumerate(_UNITS)}
_FACTOR |= {name[0].lower(): factor for name, factor in zip(_UNITS, _FACTOR.values(), strict=True)}
_FACTOR[""] = 1
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ \t]*([A-Za-z]*)", re.ASCII)
MAX_SIZE = 2**63 - 1
"""Bytes; what fits the system's file offsets."""


def parse_size(text: str) -> int:
    """Bytes: `4GiB`, `512 MiB`, `16M`, `1.5T`, `4096`.

    :raises ConfigError: not a number with a known unit, not whole bytes, or too large
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"'{text}' is not a size: write a number and a unit, such as 512MiB or 4GiB")
    number, unit = match.groups()
    factor = _FACTOR.get(unit.lower())
    if factor is None:
        raise ConfigError(_wrong_unit(text, number, unit))
    size = Fraction(number) * factor
    if size.denominator != 1:
        raise ConfigError(f"'{text}' is not a whole number of bytes")
    if size > MAX_SIZE:
        raise ConfigError(f"'{text}' is too large: the most is {format_size(MAX_SIZE)}")
    return int(size)


def _wrong_unit(text: str, number: str, unit: str) -> str:
    decimal = re.fullmatch(r"([kmgtp])b", unit.lower())
    if decimal:
        return f"'{text}' is ambiguous: write {number}{decimal[1].upper()}iB, which counts in 1024s"
    return f"'{text}' has an unknown unit '{unit}': use {', '.join(_UNITS)} or K, M, G, T, P"


def format_size(size: int, space: str = "") -> str:
    """For people: at most four digits, rounded, such as `1.5GiB` or `17.2TiB`.

    :param space: between number and unit
    """
    value, unit = float(size), 0
    while abs(value) >= 999.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    digits = 0 if unit == 0 else 2 if abs(value) < 9.995 else 1
    number = f"{value:.{digits}f}"
    if digits:
        number = number.rstrip("0").rstrip(".")
    return f"{number}{space}{_UNITS[unit]}"


def exact_size(size: int) -> str:
    """What `parse_size` reads back as the same number, in the largest unit that divides it."""
    power = len(_UNITS) - 1
    while size % 1024**power:
        power -= 1
    return f"{size // 1024**power}{_UNITS[power]}" if size and power else str(size)

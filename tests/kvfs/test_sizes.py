"""Sizes in and out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.errors import ConfigError
from kvfs.sizes import MAX_SIZE, exact_size, format_size, parse_size


@pytest.mark.parametrize(
    "text, size",
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("4GiB", 4 << 30),
        ("512 MiB", 512 << 20),
        ("16M", 16 << 20),
        ("16m", 16 << 20),
        (" 1.5 tib ", 3 << 39),
        ("2P", 2 << 50),
        ("0.5KiB", 512),
    ],
)
def test_parses(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is not a size"),
        ("GiB", "is not a size"),
        ("-1M", "is not a size"),
        ("1e9", "is not a size"),
        ("4 G iB", "is not a size"),
        ("٤GiB", "is not a size"),
        ("4GB", "is ambiguous: write 4GiB"),
        ("1.5kb", "is ambiguous: write 1.5KiB"),
        ("4Gib/s", "is not a size"),
        ("4 Gigs", "unknown unit 'Gigs': use B, KiB, MiB, GiB, TiB, PiB or K, M, G, T, P"),
        ("0.3B", "is not a whole number of bytes"),
        ("8193P", "is too large"),
    ],
)
def test_refuses_with_a_reason(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_size(text)


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "0.98KiB"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (10_180, "9.94KiB"),
        (10_239, "10KiB"),
        (1023 << 20, "1GiB"),
        (100 << 30, "100GiB"),
        (17_592_186_044_416, "16TiB"),
        (4096 << 50, "4096PiB"),
    ],
)
def test_formats(size, text):
    assert format_size(size) == text


@given(st.integers(0, MAX_SIZE))
def test_exact_size_reads_back(size):
    assert parse_size(exact_size(size)) == size


@given(st.integers(0, 40), st.integers(1, 1000))
def test_exact_size_is_short_for_round_numbers(power, factor):
    assert len(exact_size(factor * 1024 ** (power // 10))) <= 8


@given(st.integers(1, MAX_SIZE))
def test_format_size_is_within_a_percent(size):
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]+)", format_size(size))
    assert match is not None
    number, unit = match.groups()
    assert abs(float(number) * parse_size(f"1{unit}") - size) <= size * 0.01

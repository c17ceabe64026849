"""Page-aligned memory, and the sparse bytes under test devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdev.memory import address_of, is_page_aligned, page_buffer
from blockdev.testing import SparseBytes
from blockdev.types import KIB, PAGE

SIZE = 256 * KIB


def test_page_buffer() -> None:
    for length in (0, 1, PAGE, 3 * PAGE + 7):
        buffer = page_buffer(length)
        assert len(buffer) == length
        assert bytes(buffer) == bytes(length)
        assert not buffer.readonly
    assert is_page_aligned(page_buffer(1))


def test_addresses() -> None:
    buffer = page_buffer(2 * PAGE)
    start = address_of(buffer)
    assert start % PAGE == 0
    assert address_of(buffer[100:]) == address_of(buffer.toreadonly()[100:]) == start + 100
    assert not is_page_aligned(buffer[512:])
    assert is_page_aligned(buffer[PAGE:])


def test_a_strided_view_has_no_address() -> None:
    with pytest.raises((BufferError, TypeError)):
        address_of(page_buffer(PAGE)[::2])
    with pytest.raises(BufferError):
        address_of(page_buffer(PAGE)[::2].toreadonly())


def test_asking_for_an_address_keeps_nothing() -> None:
    memory = bytearray(PAGE)
    address_of(memoryview(memory))
    address_of(memoryview(memory).toreadonly())
    memory.extend(b"x")  # a BufferError if something still looked at it


spans = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda ends: (min(ends), max(ends)))
steps = st.one_of(
    st.tuples(st.just("write"), spans),
    st.tuples(st.just("zero"), spans),
    st.tuples(st.just("copy"), st.just((0, 0))),
)


@given(st.lists(steps, max_size=12))
def test_sparse_bytes_are_bytes(script: list[tuple[str, tuple[int, int]]]) -> None:
    sparse, model = SparseBytes(SIZE), bytearray(SIZE)
    copies: list[tuple[SparseBytes, bytes]] = []
    for number, (what, (start, end)) in enumerate(script):
        if what == "copy":
            copies.append((sparse.copy(), bytes(model)))
            continue
        data = bytes([number + 1] * (end - start)) if what == "write" else bytes(end - start)
        if what == "write":
            sparse.write(start, data)
        else:
            sparse.zero(start, end - start)
        model[start:end] = data
    assert sparse.read(0, SIZE) == model
    for copy, expected in copies:
        assert copy.read(0, SIZE) == expected
        copy.write(1, b"x")
    assert sparse.read(0, SIZE) == model

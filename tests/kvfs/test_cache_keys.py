"""Keys name places, each one of its own, and nothing outside of what they may name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.cache.keys import Block, Namespace, Place, place_of
from kvfs.errors import BadKey, WrongNamespace

OURS = Namespace("meta/Llama-3", rank=2, group=1)

NAMESPACES = st.builds(
    Namespace,
    st.text(st.characters(codec="ascii"), min_size=1, max_size=20),
    st.integers(0, 100),
    st.integers(0, 100),
)


def test_a_hash_is_a_file_of_its_namespace() -> None:
    place = place_of(bytes.fromhex("00ff"), OURS)
    assert str(place) == "/kvfs-blocks/meta%2FLlama-3/r2/g1/00ff"
    assert place_of(Block(OURS, b"\x00\xff"), OURS) == place
    assert place_of(str(place), OURS) == place


@pytest.mark.parametrize("path", ["a/b/c.bin", "/a/b/c.bin", "//a//b/c.bin"])
def test_a_path_is_what_the_mount_shows(path: str) -> None:
    assert place_of(path, None) == Place((b"a", b"b"), b"c.bin")
    assert place_of("Ünïcode", OURS) == Place((), "Ünïcode".encode())


@given(NAMESPACES, NAMESPACES, st.binary(min_size=1, max_size=64), st.binary(min_size=1, max_size=64))
def test_no_two_blocks_have_one_place(one: Namespace, other: Namespace, first: bytes, second: bytes) -> None:
    places = {place_of(first, one), place_of(second, other)}
    assert len(places) == (1 if (one, first) == (other, second) else 2)
    for place in places:
        for part in (*place.parents, place.name):
            assert 0 < len(part) <= 255
            assert b"/" not in part
            assert part not in (b".", b"..")


@pytest.mark.parametrize(
    "key, message",
    [
        ("", "names no object"),
        ("/", "names no object"),
        ("a/", "must end with a name"),
        ("a/../b", "cannot be a name"),
        ("./b", "cannot be a name"),
        ("a\0b", "cannot be a name"),
        ("x" * 256, "cannot be a name"),
        ("\ud800", "not text"),
        (b"", "1 to 64 bytes, not 0"),
        (bytes(65), "1 to 64 bytes, not 65"),
        (17, "a key is a path"),
        (None, "a key is a path"),
    ],
)
def test_what_names_nothing_is_refused(key, message: str) -> None:
    with pytest.raises(BadKey, match=message):
        place_of(key, OURS)


def test_a_hash_needs_a_namespace() -> None:
    with pytest.raises(BadKey, match="give open_cache one"):
        place_of(b"hash", None)


@pytest.mark.parametrize("other", [Namespace("meta/Llama-3", 2, 2), Namespace("meta/Llama-3", 1, 1)])
def test_another_namespaces_blocks_are_refused(other: Namespace) -> None:
    for key in (Block(other, b"hash"), str(place_of(b"hash", other))):
        with pytest.raises(WrongNamespace, match="Llama-3, rank 2, group 1"):
            place_of(key, OURS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Namespace(""),
        lambda: Namespace("x" * 256),
        lambda: Namespace("/" * 86),
        lambda: Namespace("m", rank=-1),
        lambda: Namespace("m", group=1 << 32),
    ],
)
def test_a_namespace_has_a_name_and_numbers(make) -> None:
    with pytest.raises(BadKey):
        make()

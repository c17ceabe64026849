"""The network between guests: whole frames, to all others, whatever comes and goes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.lib.lab.hub import Hub, whole_frames

SECONDS = 60


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def attach(hub: Hub, name: str) -> socket.socket:
    cable = hub.attach(name)
    cable.settimeout(SECONDS)
    return cable


@given(st.lists(st.binary(max_size=40)), st.binary(max_size=40))
def test_only_whole_frames_count(contents: list[bytes], last: bytes) -> None:
    whole = b"".join(map(frame, contents))
    assert whole_frames(whole) == len(whole)
    assert whole_frames(whole + frame(last)[:-1]) == len(whole)


def test_a_frame_reaches_all_others(hub: Hub) -> None:
    with attach(hub, "a") as a, attach(hub, "b") as b, attach(hub, "c") as c:
        a.sendall(frame(b"hello"))
        assert b.recv(100) == c.recv(100) == frame(b"hello")
        b.sendall(frame(b"back"))
        assert a.recv(100) == frame(b"back"), "and not what it sent itself"


def test_a_pulled_cable_loses_what_is_sent(hub: Hub) -> None:
    with attach(hub, "a") as a, attach(hub, "b") as b, attach(hub, "c") as c:
        hub.cut("b")
        a.sendall(frame(b"lost"))
        assert c.recv(100) == frame(b"lost")
        b.sendall(frame(b"lost as well"))
        hub.mend("b")
        a.sendall(frame(b"heard"))
        assert b.recv(100) == frame(b"heard")


def test_a_guest_that_dies_amid_a_frame_and_comes_back(hub: Hub) -> None:
    with attach(hub, "a") as a:
        with attach(hub, "b") as b:
            b.sendall(frame(b"half of it")[:7])
        a.sendall(frame(b"into the void"))
        with attach(hub, "b") as b:
            b.sendall(frame(b"I am back"))
            assert a.recv(100) == frame(b"I am back")
            a.sendall(frame(b"welcome"))
            assert b.recv(100) == frame(b"welcome")

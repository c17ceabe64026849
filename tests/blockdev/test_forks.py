"""What a child process made by fork has of its parent: nothing that would outlive it."""

from __future__ import annotations

import os
from pathlib import Path

from blockdev.forks import close_in_children, closed_in_children, ends_in_children, forget
from tests.forking import in_child


def is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


def test_a_file_is_closed_in_a_child_and_in_its_children(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with closed_in_children(fd):
            assert not in_child(lambda: is_open(fd))
            assert not in_child(lambda: in_child(lambda: is_open(fd)))
            assert is_open(fd)
        assert in_child(lambda: is_open(fd))
    finally:
        os.close(fd)


def test_a_number_that_was_used_again_stays_open(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    close_in_children(fd)
    forget(fd)
    os.close(fd)
    again = os.open(tmp_path, os.O_RDONLY)
    assert again == fd
    assert in_child(lambda: is_open(again))
    os.close(again)


def test_things_hear_of_it_in_the_child_only() -> None:
    class Thing:
        ended = False

        def end_in_child(self) -> None:
            self.ended = True

    thing = Thing()
    ends_in_children(thing)
    assert in_child(lambda: thing.ended)
    assert not thing.ended

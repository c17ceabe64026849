"""Asks a child process made by fork."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def in_child(question: Callable[[], bool]) -> bool:
    """The answer that a forked child gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of later Pythons, about forks among threads
        child = os.fork()
    if not child:
        try:
            os._exit(0 if question() else 1)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, 1}
    return status == 0

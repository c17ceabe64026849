from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kvfs.sd_notify import notify
from tests.conftest import ExpectLog


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@kvfs-test-{os.getpid()}" if abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert manager.recv(100) == b"READY=1"


def test_a_manager_that_is_gone_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expect_log: ExpectLog
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
    expect_log("cannot be told READY=1: No such file", count=1)
    notify("READY=1")

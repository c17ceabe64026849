"""The lab itself: commands, deadlines, files, disks that outlive a reboot, death."""

from __future__ import annotations

import pytest

from scripts.lib.lab.errors import CommandTimedOut, GuestGone, LabError
from scripts.lib.lab.guest import Guest


def test_commands(guest: Guest) -> None:
    finished = guest.run("sh", "-c", "cat; echo oops >&2; exit 3", stdin=b"a\0b", check=False)
    assert (finished.code, finished.output, finished.stderr) == (3, b"a\0b", "oops\n")
    assert guest.run("head", "-c", "5000000", "/dev/zero").output == bytes(5_000_000)
    with pytest.raises(LabError, match="No such file"):
        guest.run("no-such-program")


def test_a_deadline_is_the_end_of_all_that_a_command_started(guest: Guest) -> None:
    with pytest.raises(CommandTimedOut, match="begun"):
        guest.run("sh", "-c", "echo begun; sleep 1111 & sleep 1111", seconds=2)
    assert guest.run("pgrep", "-f", "sleep 1111", check=False).code == 1


def test_the_tree_may_be_written_and_is_not_changed(guest: Guest) -> None:
    guest.write("/kvfs/tests/lab/scribble", b"x")
    assert guest.read("/kvfs/tests/lab/scribble") == b"x"
    assert "scribble" not in guest.sh("ls /mnt/tree/tests/lab")


def test_disks_outlive_a_reboot_and_nothing_else_does(guest: Guest) -> None:
    guest.sh("mkfs.ext4 -q /dev/lab/state; mkdir /mnt/state; mount /dev/lab/state /mnt/state")
    guest.write("/mnt/state/kept", b"yes")
    guest.write("/var/lib/lost", b"no")
    guest.run("dd", "if=/mnt/state/kept", "of=/dev/lab/d0", "conv=fsync")
    guest.reboot()
    guest.sh("mkdir -p /mnt/state; mount /dev/lab/state /mnt/state")
    assert guest.read("/mnt/state/kept") == b"yes"
    assert guest.run("head", "-c", "3", "/dev/lab/d0").output == b"yes"
    assert guest.run("test", "-e", "/var/lib/lost", check=False).code == 1


def test_a_killed_guest_ends_its_commands(guest: Guest) -> None:
    sleeper = guest.popen("sh", "-c", "echo begun; sleep 1111")
    sleeper.wait_for("begun")
    guest.kill()
    with pytest.raises(GuestGone, match="begun"):
        sleeper.wait()
    with pytest.raises(GuestGone):
        guest.run("true")

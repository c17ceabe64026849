"""The lab itself: commands, deadlines, files, disks that outlive a reboot, death."""

from __future__ import annotations

import pytest

from scripts.lib.lab.errors import CommandFailed, CommandTimedOut, GuestGone, LabError
from scripts.lib.lab.guest import Guest


def test_a_command_tells_all(guest: Guest) -> None:
    finished = guest.run("sh", "-c", "cat; echo oops >&2; exit 3", stdin=b"a\0b", check=False)
    assert (finished.code, finished.output, finished.stderr) == (3, b"a\0b", "oops\n")
    with pytest.raises(CommandFailed, match="oops"):
        finished.check()
    with pytest.raises(LabError, match="No such file"):
        guest.run("no-such-program")


def test_much_output_arrives_whole(guest: Guest) -> None:
    assert guest.run("head", "-c", "5000000", "/dev/zero").output == bytes(5_000_000)


def test_commands_run_side_by_side(guest: Guest) -> None:
    guest.sh("mkfifo /run/meeting")
    reader = guest.popen("cat", "/run/meeting")
    guest.sh("echo together >/run/meeting")
    assert reader.wait().stdout == "together\n"


def test_a_command_ends_at_its_deadline_with_all_that_it_started(guest: Guest) -> None:
    with pytest.raises(CommandTimedOut, match="begun"):
        guest.run("sh", "-c", "echo begun; sleep 1111 & sleep 1111", seconds=2)
    assert guest.run("pgrep", "-f", "sleep 1111", check=False).code == 1


def test_waiting_for_output(guest: Guest) -> None:
    server = guest.popen("sh", "-c", "echo ready; exec sleep 2222")
    server.wait_for("ready")
    server.signal(15)
    assert server.wait().code == -15
    with pytest.raises(CommandTimedOut, match="did not print 'ready'"):
        guest.popen("echo", "steady").wait_for("ready")


def test_a_background_process_does_not_hold_its_command(guest: Guest) -> None:
    assert guest.sh("sleep 3333 & echo $!").strip().isdigit()
    guest.run("pkill", "-f", "sleep 3333")


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

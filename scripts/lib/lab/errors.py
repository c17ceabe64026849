"""What can go wrong in the lab.

LabError
├── Unavailable         this machine cannot run the lab; says what to do
├── BuildFailed         the image could not be made
├── BootFailed          a guest did not come up, and not the next time either
├── GuestGone           the guest died, or was killed, while a command ran in it
├── CommandTimedOut     a command was killed at its deadline
└── CommandFailed       a command ended with another exit code than 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.lib.lab.channel import Finished


class LabError(Exception):
    """Any of them."""


class Unavailable(LabError):
    """This machine cannot run the lab; the message says why and what to do."""


class BuildFailed(LabError):
    """The image could not be made; the message has the last words of the program that failed."""


class BootFailed(LabError):
    """A guest did not come up; the message has the end of its console."""


class GuestGone(LabError):
    """The guest is not running, or ended while something was asked of it."""


class CommandTimedOut(LabError):
    """A command ran into its deadline, or did not print what was waited for; it has been killed."""


class CommandFailed(LabError):
    """A command ended with an exit code other than 0: `finished` has all of it."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(finished.describe())
        self.finished = finished

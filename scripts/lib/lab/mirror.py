"""Where Debian's packages come from: this machine's own configuration of apt says it, nothing here does."""

from __future__ import annotations

import os
import platform
import subprocess

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
VARIABLE = "KVFS_LAB_MIRROR"
"""Environment variable that overrides what is found."""
_PASSED_ON = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::Check-")
"""apt's settings for proxies, certificates, retries, and mirrors that lag."""


def mirror() -> str | None:
    """The URL of a Debian archive: from the environment, else the first that this machine takes its own system from,
    if that is Debian. None leaves the choice to mmdebstrap, which knows Debian's own."""
    if chosen := os.environ.get(VARIABLE):
        return chosen
    system = platform.freedesktop_os_release()
    if system["ID"] != "debian":
        return None
    release = system.get("VERSION_CODENAME", "")
    found = _output(
        "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Release: {release}"
    )
    return next(iter(found), None)


def source(suite: str) -> list[str]:
    """What mmdebstrap is given as its source: a line of sources.list, or nothing."""
    url = mirror()
    return [] if url is None else [f"deb [signed-by={KEYRING}] {url} {suite} main"]


def apt_options() -> str:
    """This machine's settings for fetching packages, in the syntax of apt.conf."""
    return "".join(
        f"{line}\n" for line in _output("apt-config", "dump", "Acquire") if line.startswith(_PASSED_ON)
    )


def _output(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()

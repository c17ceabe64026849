"""Telling systemd where we are (sd_notify(3)), without libsystemd. Silent where nobody listens."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send `state`, such as `READY=1`, to $NOTIFY_SOCKET if that is set.

    :raises OSError: it is set, and nobody is there
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        connection.sendto(state.encode(), address)

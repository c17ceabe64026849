"""Telling systemd where we are (sd_notify(3)), without libsystemd. Silent where nobody listens."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send `state`, such as `READY=1`, to $NOTIFY_SOCKET if that is set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.sendto(state.encode(), address)
        except OSError as error:
            log.warning("$NOTIFY_SOCKET cannot be told %s: %s", state, error.strerror)

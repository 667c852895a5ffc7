"""Tell systemd where we stand, if it asked (sd_notify: one datagram of KEY=VALUE lines)."""

from __future__ import annotations

import socket
from collections.abc import Mapping


def watchdog_s(env: Mapping[str, str], pid: int) -> float:
    """Seconds between two "WATCHDOG=1": half of what systemd waits for one. 0: it waits for none.

    Args:
        env: The environment.
        pid: This process, which must be the one that systemd watches.
    """
    if env.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    microseconds = env.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() else 0.0


def notify(state: str, env: Mapping[str, str]) -> bool:
    """Send e.g.

    "READY=1" or "STOPPING=1" to $NOTIFY_SOCKET. False if nobody asked or nobody listens; never
    blocks or raises.
    """
    address = env.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.setblocking(False)
        try:
            out.sendto(state.encode(), address)
        except OSError:
            return False
    return True

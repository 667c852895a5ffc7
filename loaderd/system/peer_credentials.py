"""Who may attach: the rule about uids, and two ways in which a unix socket tells about its peer."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module before 3.14
UCRED = struct.Struct("iII")  # struct ucred: pid, uid, gid
OVERFLOW_UID = 65534  # what the kernel shows for a uid that our user namespace doesn't map
EVERYBODY = 4294967295  # uids that the initial user namespace maps


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """Who made a connection.

    Attributes:
        pid: 0 where the peer's PID namespace isn't ours.
        uid: As this process sees it.
    """

    pid: int
    uid: int


def peer_cred(sock: socket.socket) -> PeerCredentials:
    """Who made the connection, by the kernel's word."""
    pid, uid, _ = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    return PeerCredentials(pid, uid)


def peer_pidfd(sock: socket.socket) -> int:
    """A descriptor that polls readable when the peer's process is dead; the caller closes it.

    Returns:
        -1 where the kernel can't tell.
    """
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return -1


def maps_everybody(uid_map: str) -> bool:
    """Whether a user namespace with this /proc/self/uid_map maps every uid there is.

    Then 65534 can only be its real owner.
    """
    return sum(int(line.split()[2]) for line in uid_map.splitlines() if line.strip()) >= EVERYBODY


@dataclass(frozen=True, slots=True)
class PeerGate:
    """The rule about uids.

    Attributes:
        own: Our uid, which may always attach, as may root.
        allow_uids: Others that may.
        allow_unmapped: Uids that a user namespace doesn't map may, too.
        all_mapped: See `maps_everybody`.
    """

    own: int
    allow_uids: tuple[int, ...] = ()
    allow_unmapped: bool = False
    all_mapped: bool = True

    @classmethod
    def here(cls, allow_uids: tuple[int | str, ...]) -> PeerGate:
        """The gate of this process.

        Args:
            allow_uids: As in the config, uids and "unmapped".
        """
        try:
            with open("/proc/self/uid_map") as file:
                mapped = maps_everybody(file.read())
        except OSError:
            mapped = True  # a kernel without user namespaces
        uids = tuple(uid for uid in allow_uids if isinstance(uid, int))
        return cls(os.geteuid(), uids, "unmapped" in allow_uids, mapped)

    @property
    def open(self) -> bool:
        """Whether anybody but ourselves and root is let in."""
        return bool(self.allow_uids) or self.allow_unmapped

    @property
    def mode(self) -> int:
        """Mode of the socket files: the kernel keeps others out, or all may come and be told."""
        return 0o666 if self.open else 0o600

    @property
    def uids(self) -> tuple[int, ...]:
        """Every uid that may attach, as the kernel shows it."""
        known = {self.own, 0, *self.allow_uids}
        if not self.all_mapped:
            known.discard(OVERFLOW_UID)
        return tuple(sorted(known | ({OVERFLOW_UID} if self.allow_unmapped else set())))

    def refusal(self, uid: int) -> str:
        """Why this uid may not attach, "" if it may."""
        if uid in self.uids:
            return ""
        if uid == OVERFLOW_UID and not self.all_mapped:
            return (
                "your uid is not mapped in the daemon's user namespace, so the daemon cannot "
                'identify you; [daemon] allow_uids = ["unmapped"] admits all such users'
            )
        return (
            f"uid {uid} may not attach to a daemon of uid {self.own}; add it to [daemon] allow_uids"
        )

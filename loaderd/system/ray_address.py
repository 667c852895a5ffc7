"""Whether anybody listens at the address of a Ray cluster. Nothing of Ray is loaded for that."""

from __future__ import annotations

import socket

REACH_S = 5.0  # to open a connection to the head of a cluster
CLIENT = "ray://"  # of an address for processes that are outside of the cluster


def unreachable(address: str) -> str:
    """Why nobody can be reached there, in one line; "" if somebody listens.

    Ray itself would wait for long, and takes a second to load.

    Args:
        address: As in the config. Of "auto" it is not known.
    """
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host:
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        return f"Ray at {address} is not reachable: {error}"
    return ""

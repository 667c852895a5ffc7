"""What becomes of a worker process, from the wish for it on."""

from __future__ import annotations

from enum import Enum


class ProcessState(Enum):
    """What has become of a worker process."""

    WAITING = "waiting"  # for the fork server
    FORKING = "forking"  # the fork server has been asked
    BOOTING = "booting"
    READY = "ready"
    DEAD = "dead"  # its pidfd has said so; how it ended is not known yet
    GONE = "gone"

"""What a config says of copies of databases on a local disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Where copies lie, and how long.

    Attributes:
        folder: Absolute path.
        limit: Most bytes of all copies together; 0 is no limit.
        keep_s: A copy that nobody has used for so many seconds is removed; 0: never.
        user: Names the daemon among those that use the folder.
    """

    folder: str
    limit: int
    keep_s: float
    user: str

    @classmethod
    def of(cls, folder: str, limit: int | None, days: float, socket: str) -> StageConfig:
        """As the table [daemon] says it.

        Args:
            folder: Absolute path.
            limit: In bytes, None for no limit.
            days: 0: never remove a copy for its age.
            socket: The daemon's.
        """
        user = hashlib.sha256(socket.encode(errors="surrogateescape")).hexdigest()[:16]
        return cls(folder, limit or 0, days * DAY_S, user)

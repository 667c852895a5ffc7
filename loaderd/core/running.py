"""A job in a worker's hands."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.drafts import Draft
from loaderd.core.jobs import Job
from loaderd.core.sessions import Session


@dataclass(slots=True)
class Running:
    """From Send until its worker has answered or is dead. The result counts only while `attempt` is the draft's."""

    job: Job
    worker: int
    session: Session
    draft: Draft
    attempt: int

    @property
    def wanted(self) -> bool:
        return self.draft.attempt == self.attempt

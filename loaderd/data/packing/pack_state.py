"""How far a pack has come.

It is kept in the unfinished database with each transaction, so that a broken-off run can go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from loaderd_wire.packing import packed

LISTED = 1_000  # bad samples that the report names; all are counted
KINDS = 32  # different remarks that are counted apart
OTHER = "other"


PAGE = 4096
PAGE_HEAD = 16
ENTRY = 24  # bytes of a page that a sample takes besides its value


def stored_bytes(value: bytes) -> int:
    """What a value takes in the file: one of more than half a page has pages of its own."""
    if len(value) + ENTRY > PAGE // 2:
        return -(-(len(value) + PAGE_HEAD) // PAGE) * PAGE + ENTRY
    return len(value) + ENTRY


@dataclass(frozen=True, slots=True)
class PackState:
    """How far a pack has come, as kept in the unfinished database.

    Attributes:
        fingerprint: Of the source.
        seen: Samples looked at.
        count: Samples packed.
        chain: Hash over all values so far.
        bad_count: Samples left out.
        bad: (name, reason) of the first of them.
        form: "dict" or "tuple".
        fields: As in DatabaseMeta.
        tally: What became of how many, in words.
        bytes: What the values take in the file.
    """

    fingerprint: str
    seen: int = 0
    count: int = 0
    chain: bytes = b""
    bad_count: int = 0
    bad: tuple[tuple[str, str], ...] = ()
    form: str = "dict"
    fields: tuple[tuple[str, int, str, tuple[int, ...]], ...] = field(default=())
    tally: tuple[tuple[str, int], ...] = ()
    bytes: int = 0

    def to_bytes(self) -> bytes:
        """For the unfinished database, where `from_bytes` reads it."""
        return packed(
            [
                self.fingerprint,
                self.seen,
                self.count,
                self.chain,
                self.bad_count,
                self.bad,
                self.form,
                self.fields,
                self.tally,
                self.bytes,
            ],
            "backslashreplace",
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> PackState | None:
        """The state, or None if it is none of this version's."""
        try:
            fingerprint, seen, count, chain, bad_count, bad, form, fields, tally, *more = (
                msgpack.unpackb(data, use_list=False)
            )
        except Exception:  # noqa: BLE001 - msgpack raises many kinds; whatever it is, it cannot be gone on with
            return None
        return cls(fingerprint, seen, count, chain, bad_count, bad, form, fields, tally, *more)

    def with_sample(
        self, value: bytes, form: str, described: Callable[[], tuple[Any, ...]]
    ) -> PackState:
        """One more sample packed; `described` is called for the first one alone."""
        chain = hashlib.blake2b(
            self.chain + hashlib.blake2b(value, digest_size=32).digest(), digest_size=16
        ).digest()
        return replace(
            self,
            seen=self.seen + 1,
            count=self.count + 1,
            bytes=self.bytes + stored_bytes(value),
            chain=chain,
            form=form,
            fields=self.fields or described(),
        )

    def with_remark(self, remark: str) -> PackState:
        """One more sample with this in the tally; "" is none."""
        if not remark:
            return self
        counts = dict(self.tally)
        known = remark if remark in counts or len(counts) < KINDS else OTHER
        counts[known] = counts.get(known, 0) + 1
        return replace(self, tally=tuple(counts.items()))

    def with_bad(self, name: str, reason: str) -> PackState:
        """One more sample left out; the first LISTED of them are named."""
        listed = self.bad if len(self.bad) >= LISTED else (*self.bad, (name, reason))
        return replace(self, seen=self.seen + 1, bad_count=self.bad_count + 1, bad=listed)

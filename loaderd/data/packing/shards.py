"""One source packed into several databases, none of them larger than so many bytes.

They are `<name>-00000.lmdb` and so on. All are written as parts, and renamed when the last one is
complete, the first one at the end: as long as its part is there, the pack is not finished. After a
kill -9 the same call goes on; what comes out is the same as without the kill. The first one keeps
what was packed in all: a run that only has names left to give reads it there, and a file that has
its name is written to no more.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace

from loaderd.data.errors import SourceError, writing
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.file_facts import is_sound
from loaderd.data.lmdb.writer import DamagedPart, Writer
from loaderd.data.packing.pack_state import LISTED, PackState
from loaderd.data.packing.part_file import claimed, finish
from loaderd.data.packing.writer import (
    NothingGood,
    OnBad,
    OnProgress,
    PackReport,
    PackRun,
    Samples,
    UnlikeSample,
    check_classes,
    meta_of,
    opened_run,
)

COMPLETE = "complete"


def shard_path(target: str, number: int) -> str:
    """The name of a shard."""
    stem, ending = os.path.splitext(target)
    return f"{stem}-{number:05}{ending}"


def _there(target: str, behind: str = "") -> list[str]:
    """The files that are named as shards of this target, with something behind the name."""
    stem, ending = os.path.splitext(target)
    return sorted(glob.glob(f"{glob.escape(stem)}-{'[0-9]' * 5}{glob.escape(ending)}{behind}"))


class ShardedPack:
    """Packs into shards: use `run`, once."""

    def __init__(
        self, samples: Samples, target: str, most_bytes: int, progress: OnProgress, bad: OnBad
    ) -> None:
        """Prepare.

        Args:
            samples: What is packed.
            target: The name that those of the shards are made of.
            most_bytes: Of a shard, 1 MiB or more.
            progress: Is told how far it is.
            bad: Is told of each sample that is left out.
        """
        self._samples = samples
        self._target = target
        self._most_bytes = most_bytes
        self._progress = progress
        self._bad = bad
        self._fingerprint = f"{samples.fingerprint} shard {most_bytes}"
        self._restarted = False
        self._resumed_at = 0

    def run(self) -> PackReport:
        """Pack. Raises SourceError in one line; what was done is kept for the next call."""
        check_classes(self._samples, self._target)
        with claimed(shard_path(self._target, 0)) as part:
            total = self._complete(part)
            if total is None:
                self._refuse_others()
                try:
                    total = self._mark_complete(self._pack_all())
                except (NothingGood, UnlikeSample) as error:
                    self._remove_parts(0)
                    raise SourceError(f"{self._target}: {error}") from None
            size = self._finish_all(total)
        return PackReport(
            "-*".join(os.path.splitext(self._target)),
            total.count,
            total.chain.hex(),
            size,
            self._samples.classes,
            total.bad,
            total.bad_count,
            self._resumed_at,
            self._restarted,
            total.tally,
            files=_files(total),
        )

    def _complete(self, part: str) -> PackState | None:
        """What was packed, if all of it was and only names are left to be given."""
        if not os.path.getsize(part) or not is_sound(part):
            return None
        try:
            with closing(Writer(part)) as writer:
                kept = writer.get(record_format.PART_KEY)
        except DamagedPart:
            return None
        state = PackState.from_bytes(kept) if kept else None
        begins = f"{self._fingerprint} {COMPLETE} "
        return state if state is not None and state.fingerprint.startswith(begins) else None

    def _refuse_others(self) -> None:
        for path in _there(self._target):
            raise SourceError(f"{path}: already exists; remove it, or choose another name")

    def _pack_all(self) -> list[PackState]:
        """The state of each shard, all of whose samples are in its part."""
        states: list[PackState] = []
        before = PackState("")
        while not states or states[-1].seen < self._samples.total:
            number = len(states)
            begin = PackState(
                f"{self._fingerprint} {number} from {before.seen}",
                before.seen,
                form=before.form,
                fields=before.fields,
            )
            before = self._pack_one(self._part(number), begin)
            states.append(before)
        if not states[-1].count and len(states) > 1:  # only bad samples were left for it
            states[-2:] = [_merged(states[-2].fingerprint, states[-2:])]
        self._remove_parts(len(states))
        return states

    def _pack_one(self, part: str, begin: PackState) -> PackState:
        with writing(part):
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

        def make(writer: Writer) -> PackRun:
            return PackRun(
                self._samples, writer, self._progress, self._bad, begin, self._most_bytes
            )

        run, writer, restarted = opened_run(part, make)
        with closing(writer):
            self._restarted = self._restarted or restarted
            self._resumed_at = max(self._resumed_at, run.resumed_at)
            run.go()
        return run.state

    def _mark_complete(self, states: Sequence[PackState]) -> PackState:
        """Keep that all is packed in the first part, and its metadata in each.

        Raises NothingGood.
        """
        total = _merged(f"{self._fingerprint} {COMPLETE} {len(states)}", states)
        for number, state in reversed(list(enumerate(states))):
            record = record_format.pack_meta(meta_of(self._samples, state))
            entries = [(record_format.META_KEY, record)]
            if not number:
                entries.append((record_format.PART_KEY, total.to_bytes()))
            with closing(Writer(self._part(number))) as writer:
                writer.put(entries, [])
        return total

    def _finish_all(self, total: PackState) -> int:
        """Give each shard its name, the first one at the end. Bytes of all together."""
        for number in reversed(range(_files(total))):
            path, part = shard_path(self._target, number), self._part(number)
            if number and not os.path.lexists(part):  # an earlier run has named it
                continue
            if number:
                _without_state(part)
            finish(part, path)
        paths = [shard_path(self._target, number) for number in range(_files(total))]
        return sum(map(os.path.getsize, paths))

    def _part(self, number: int) -> str:
        return f"{shard_path(self._target, number)}.part"

    def _remove_parts(self, first: int) -> None:
        """Remove parts from this number on, that an earlier run has left."""
        for path in _there(self._target, ".part"):
            if path >= self._part(first):
                with suppress(OSError):
                    os.unlink(path)


def _without_state(path: str) -> None:
    """Remove what it says of how far it has come. Raises WriteFault."""
    with closing(Writer(path)) as writer:
        writer.put([], [], without=record_format.PART_KEY)


def _files(total: PackState) -> int:
    return int(total.fingerprint.rpartition(" ")[2])


def _merged(fingerprint: str, states: Sequence[PackState]) -> PackState:
    """What became of all of them together."""
    chain = hashlib.blake2b(b"".join(state.chain for state in states), digest_size=16).digest()
    tally: dict[str, int] = {}
    for state in states:
        for remark, count in state.tally:
            tally[remark] = tally.get(remark, 0) + count
    bad = tuple(entry for state in states for entry in state.bad)
    return replace(
        states[0],
        fingerprint=fingerprint,
        seen=states[-1].seen,
        count=sum(state.count for state in states),
        chain=chain if len(states) > 1 and states[-1].count else states[0].chain,
        bad_count=sum(state.bad_count for state in states),
        bad=bad[:LISTED],
        tally=tuple(tally.items()),
    )

"""The rows of one job.

Which sample each is made from, and what happens to those that cannot be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loaderd.core.buckets import ABSENT
from loaderd.core.jobs import MAX_SUBSTITUTES, BadRow, Job, Replaced, Stage
from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.request import SampleRequest
from loaderd.engine.scoreboard import StatusWriter
from loaderd.worker.row_seeder import RowSeeder
from loaderd.worker.seeding import seed_epoch
from loaderd.worker.stage_timer import Stopwatch
from loaderd.worker.staging import explained
from loaderd.worker.stored_picture import stored_picture
from loaderd.worker.streams import WorkerStream
from loaderd_wire.errors import BadSample
from loaderd_wire.plain_text import plain
from loaderd_wire.records import quick

TRACEBACKS = 8  # bad samples of one job that keep their traceback
MAX_TRACEBACK = 8_000
MAX_MESSAGE = 500
PICTURES = 4  # bad samples of one job whose stored image is sent along
sample_request = quick(SampleRequest)  # one is made for every row
BULK_BYTES = 4 << 20  # copied under one stamp: each shows that the job goes on


class SampleRunner:
    """Makes rows of a job by the stream's policy.

    It stamps the scoreboard before each stage of each.

    Attributes:
        indices: int64, the dataset index of each row of the job, from `job.first` on; that of a
            substitute once it has taken the row.
        out: By field, the part of the slot in which an image of the current row may be made.
        bad: What could not be made, with the reasons.
        replaced: Rows whose own sample is excluded, and what took them.
    """

    def __init__(
        self,
        stream: WorkerStream,
        job: Job,
        line: StatusWriter,
        watch: Stopwatch,
        *,
        policy: str = "",
    ) -> None:
        """Make nothing yet.

        Args:
            stream: Of the job.
            job: Which rows of which batch.
            line: Where the stamps go.
            watch: Takes the time of each stage.
            policy: Instead of the stream's own on_error.
        """
        self._stream = stream
        self._policy = policy or stream.plan.on_error
        self._job = job
        self._line = line
        self._watch = watch
        self._row = job.first
        self._user_code = stream.sample_pipeline.user_code
        self._named = stream.source.keys == "stored" or bool(stream.plan.sources)
        self._untold = stream.source.awaits(job.epoch)
        self._stage = Stage.IDLE
        self._candidate = 0  # which sample the row is being made from, as in a job's `condemned`
        self._condemned = {(each.row, each.candidate) for each in job.excluded}
        spans = stream.spans(job.epoch_samples, job.rows)
        self._order, self._mixed = spans.order, spans.mixed
        place = (job.seed, job.epoch, job.start + job.first, job.start + job.last)
        self._epochs: list[int] = []  # the rows' own, where the order has such
        if self._mixed is None:
            self.indices = spans.indices(*place)
        else:
            indices, epochs = spans.rows(*place)
            self.indices, self._epochs = indices.view(np.int64), epochs.tolist()
        self._seeder = RowSeeder(stream, job, spans, self._epochs)
        # rows of the batch without a sample; none may come before one that has one
        self.absent: frozenset[int] = frozenset()
        if stream.plan.bucket_by:
            behind = np.flatnonzero(self.indices == ABSENT) + job.first
            self.absent = frozenset(behind.tolist())
        self._keys: dict[int, str] = {}
        self._places: Mapping[str, np.ndarray] = {}
        self._copied = False
        # by field, the part of the slot in which an image of the current row may be made
        self.out: dict[str, np.ndarray] = {}
        self.bad: list[BadRow] = []
        self.replaced: list[Replaced] = []

    @property
    def given_up(self) -> bool:
        """The batch will not be delivered.

        Its other rows are made all the same: whoever gets the error is told of all its bad samples.
        """
        return self._policy == "raise" and bool(self.bad)

    def note(self, stage: Stage) -> None:
        """Stamp: this row is in this stage from now on."""
        if stage is not self._stage:
            self._stage = stage
            self._watch.enter(stage)
            self._line.stamp(self._job.job, self._row, stage, self._candidate)

    def note_all(self, stage: Stage, row: int | None = None) -> None:
        """Stamp: all rows of the job, or those from `row` on, are in this stage from now on."""
        self._line.idle()
        self._begin(self._job.first if row is None else row, "", stage)

    def _begin(self, row: int, name: str, stage: Stage, candidate: int = 0) -> None:
        self._row, self._stage, self._candidate = row, stage, candidate
        self._line.name(row, name)
        self._watch.enter(stage)
        self._line.stamp(self._job.job, row, stage, candidate)

    def copied(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Copy all rows of the job from the database at once.

        A row that is run alone is always made by itself: its stamp must name it.

        Args:
            arrays: By field, [rows of the job, *shape], contiguous.

        Returns:
            False where that cannot be done, or one of them is no such row: nothing is known of any
            of them then, and `each` tells which it is and why.
        """
        job = self._job
        if job.last - job.first < 2 or job.excluded or job.lost:
            return False
        self.note_all(Stage.FETCH_MANY)
        bulk = self._stream.bulk()
        if bulk is None:
            return False
        each = max(1, sum(array.nbytes for array in arrays.values()) // len(self.indices))
        step = max(2, BULK_BYTES // each)
        for first in range(0, len(self.indices), step):
            if first:
                self.note_all(Stage.FETCH_MANY, job.first + first)
            last = min(first + step, len(self.indices))
            if not bulk.write(
                self.indices[first:last],
                {name: array[first:last] for name, array in arrays.items()},
            ):
                return False
        return True

    def into(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Rows will be copied into these arrays, each before the next is made.

        A sample may be user code's own dict then, with numbers for arrays without axes. Pictures
        are made in their places where that can be done. A sample has the array of `out` then, and
        it holds what it should only if the sample is made.

        Args:
            arrays: By field, [rows of the batch, *shape].
        """
        self._copied = True
        self._places = {name: array for name, array in arrays.items() if array.ndim == 4}

    def each(self, without: frozenset[int] = frozenset()) -> Iterator[tuple[int, Any | None]]:
        """(row, what `make` makes of it) for every row of the job, in order.

        They are made together where the dataset can fetch many.
        """
        without |= self.absent
        rows = [row for row in range(self._job.first, self._job.last) if row not in without]
        many = self._stream.source.many and len(rows) > 1 and not self._condemned
        made = self._make_many(rows) if many else {}
        if not made and not self._condemned:
            indices = self.indices.tolist()
            for row in rows:
                try:
                    sample = self._attempt(row, indices[row - self._job.first])
                except SampleFault as fault:
                    sample = self.make(row, fault)
                yield row, sample
            return
        for row in rows:
            yield row, self.make(row, made.pop(row, None))

    def make(self, row: int, first: Any | SampleFault | None = None) -> Any | None:
        """The sample for this row of the batch, checked against the stream's specs.

        Args:
            row: Of the batch.
            first: What came of the row's own sample, if that has been tried already.

        Returns:
            None if there is none.
        """
        index = int(self.indices[row - self._job.first])
        fault: SampleFault | None = None
        if isinstance(first, SampleFault):
            fault = first
        elif first is not None:
            return first
        elif (row, 0) not in self._condemned:
            try:
                return self._attempt(row, index)
            except SampleFault as caught:
                fault = caught
        if self._policy == "replace":
            for candidate in range(1, MAX_SUBSTITUTES + 1):
                if (row, candidate) in self._condemned:
                    continue
                other = self._order.substitute(
                    self._job.seed, self._job.epoch, self._job.start + row, candidate
                )
                try:
                    sample = self._attempt(row, other, candidate)
                except SampleFault:
                    continue
                self.indices[row - self._job.first] = other
                if fault is None:  # its own is condemned, and what is wrong with it is known
                    self.replaced.append(Replaced(row, other))
                else:
                    self._report(row, index, fault, False, other)
                return sample
        if fault is None:
            fault = SampleFault(
                "read", "SampleFault", "it was given up, and it has no substitutes left"
            )
        self._report(row, index, fault, True, None)
        return None

    def key(self, row: int) -> str:
        """The stored name of the sample that took this row."""
        return clean(self._keys[row])

    def ledger(self, row: int, fault: SampleFault) -> None:
        """Report a row that was made, but is of no use.

        For a batch that could not be collated its first row has to stand.
        """
        self._report(row, int(self.indices[row - self._job.first]), fault, True, None)

    def _tell_epoch(self) -> None:
        """The dataset is told the epoch of the rows, before the first one.

        Raises SampleFault where its `set_epoch` fails.
        """
        job = self._job
        seed_epoch(job.seed, job.epoch)
        try:
            self._stream.source.tell(job.epoch)
        except BaseException as error:  # noqa: BLE001 - as in _made
            fault = SampleFault.of("read", error)
            fault.message = f"set_epoch({job.epoch}) failed: {fault.message}"
            raise fault from None
        self._untold = False

    def _attempt(self, row: int, index: int, candidate: int = 0) -> Any:
        """Make one sample, the row's own or a substitute.

        Raises SampleFault for whatever user code or the data may do short of killing the process.
        """
        if not self._user_code:
            return self._made(row, index, candidate)
        while True:
            try:
                sample = self._made(row, index, candidate)
            except SampleFault:
                if not self._seeder.again():
                    raise
            else:
                if not self._seeder.again():
                    return sample

    def _made(self, row: int, index: int, candidate: int) -> Any:
        """`_attempt`, once."""
        stream, job = self._stream, self._job
        self._begin(row, str(index), Stage.READ, candidate)
        try:
            if self._untold:
                self._tell_epoch()
            seeds = (
                self._seeder.seed(row, index, self.indices, own=candidate == 0)
                if self._user_code
                else None
            )
            if self._named:
                self._keys[row] = name = stream.source.key(index)
                self._line.name(row, stream.source.label(index) if stream.plan.sources else name)
            if self._places:
                self.out = {name: array[row] for name, array in self._places.items()}
            epoch = self._epochs[row - job.first] if self._epochs else job.epoch
            request = sample_request(job.seed, epoch, index, self.out, seeds, job.epoch)
            make = stream.sample_pipeline.row if self._copied else stream.sample_pipeline.make
            return make(request, self.note)
        except SampleFault:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt and the like, raised by user code, are bad samples too
            raise SampleFault.of(self._stage.name.lower(), error) from None

    def _make_many(self, rows: list[int]) -> dict[int, Any]:
        """Make the samples of rows from one fetch.

        What user code draws from global generators during the fetch depends on how the batch was
        cut; its own rng does not.

        Returns:
            row -> sample or SampleFault. Empty where the fetch failed as a whole: then one by one
            tells who it is.
        """
        stream, job = self._stream, self._job
        indices = [int(self.indices[row - job.first]) for row in rows]

        def note(stage: Stage) -> None:
            if stage == Stage.FETCH_MANY:
                if self._untold:
                    self._tell_epoch()
                self._seeder.seed(rows[0], indices[0], self.indices, own=True)
                self.note_all(stage)
            else:
                self.note(stage)

        def at(number: int) -> None:
            self._begin(rows[number], str(indices[number]), Stage.READ)
            self._seeder.seed(rows[number], indices[number], self.indices, own=True)

        epochs = [self._epochs[row - job.first] if self._epochs else job.epoch for row in rows]
        requests = [
            sample_request(job.seed, epoch, index, trainer_epoch=job.epoch)
            for epoch, index in zip(epochs, indices, strict=True)
        ]
        while True:
            try:
                made = dict(
                    zip(
                        rows,
                        stream.sample_pipeline.make_many(requests, note, at, copied=self._copied),
                        strict=True,
                    )
                )
            except BaseException:  # noqa: BLE001 - it is met again, and told, when the culprit is made by itself
                made = {}
            if not self._seeder.again():
                return made

    def _report(
        self, row: int, index: int, fault: SampleFault, lost: bool, substitute: int | None
    ) -> None:
        position = (self._job.start + row) % self._order.samples
        trace = fault.traceback[-MAX_TRACEBACK:] if len(self.bad) < TRACEBACKS else ""
        part = self._stream.source.part(index)
        message = fault.message if part in fault.message else f"{part}: {fault.message}"
        sample = BadSample(
            index,
            key_of(self._stream, index),
            position,
            fault.stage,
            fault.error,
            plain(explained(self._stream.plan, message))[:MAX_MESSAGE],
            plain(trace)[-MAX_TRACEBACK:],
            substitute,
        )
        shown = self._stream.pictures and len(self.bad) < PICTURES
        picture = stored_picture(self._stream, index, fault) if shown else b""
        self.bad.append(BadRow(row, lost, sample, picture))


def clean(text: str) -> str:
    """A name that can be encoded.

    Lone surrogates, which names of files may bring, are shown as escapes.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def key_of(stream: WorkerStream, index: int) -> str:
    """The sample's name for messages; its index where reading the name is what fails."""
    try:
        return clean(stream.source.label(index))
    except Exception:  # noqa: BLE001 - this is only to name a sample that is bad already
        return str(index)

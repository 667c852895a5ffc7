"""What a stream's settings have selected, as it travels between processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from loaderd.config.stream import StreamConfig
from loaderd.core.bucket_plan import BatchLimits, Bucket, LengthClass, buckets_of

Tick = Callable[[int], object]  # called now and then with a count, to show that it goes on


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """What the order of a stream needs, besides its settings and the number of samples.

    Attributes:
        listed: File of the samples' indices, in the order in which they are stored or listed; "":
            all samples, as they are stored.
        ends: File of what `weight_ends` made of the samples' weights; "" without weights.
        keys_hash: Of the file of keys; "" without one.
        weights_hash: Of the file of weights; "" without one.
        notes: Lines to be told.
        files: (path, `file_stamp`) of each file that the settings name.
        ranked: File of the samples' indices, from the shortest to the longest; "" without
            `bucket_by`.
        class_counts: How many samples each class of lengths has; see `length_classes`.
        class_longest: The greatest length of each class.
    """

    listed: str = ""
    ends: str = ""
    keys_hash: str = ""
    weights_hash: str = ""
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    ranked: str = ""
    class_counts: tuple[int, ...] = ()
    class_longest: tuple[int, ...] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """The files that hold its tables."""
        return tuple(path for path in (self.listed, self.ends, self.ranked) if path)

    @property
    def content(self) -> tuple[object, ...]:
        """What is the same on two hosts if both select the same: tables are named by hashes."""
        named = [os.path.basename(path) for path in (self.listed, self.ends, self.ranked)]
        return (*named, self.class_counts, self.class_longest)

    def files_changed(self) -> bool:
        """Whether a file that was read lies there no longer as it was."""
        return any(file_stamp(path) != stamp for path, stamp in self.files)


ALL = SampleSelection()


def file_stamp(path: str) -> str:
    """What of a file changes when it is written to or replaced; "" where there is none."""
    try:
        now = os.stat(path)
    except OSError:
        return ""
    return f"{now.st_dev} {now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}"


def buckets_of_stream(
    plan: StreamConfig, selection: SampleSelection, batch_size: int = 0
) -> tuple[Bucket, ...]:
    """The buckets of a stream with `bucket_by`.

    Args:
        plan: The stream.
        selection: What was selected of it.
        batch_size: Most rows of a batch; 0: the stream's own.

    Raises:
        ValueError: A sample alone is over `max_tokens`.
    """
    counts, longest = selection.class_counts, selection.class_longest
    limits = BatchLimits(batch_size or plan.batch_size, plan.max_tokens, plan.multiple)
    return buckets_of([LengthClass(*each) for each in zip(counts, longest, strict=True)], limits)

"""`loaderd check --index` and `--key`: one sample, made in this process.

It is told stage by stage, with whatever it raises.
"""

from __future__ import annotations

import argparse
import reprlib
import sys
import time
from typing import Any

from loaderd.cli import local_stream
from loaderd.cli.exit_codes import FAULTS, FINE, NO_START, USAGE, CommandError
from loaderd.cli.output import show, tell
from loaderd.cli.status import field
from loaderd.config.load import Config
from loaderd.core.jobs import Stage
from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.whole_sample import WholeSample, top_values
from loaderd.worker.sample_runner import key_of
from loaderd.worker.seeding import seed_epoch, seed_sample
from loaderd_wire.plain_text import plain


def run(args: argparse.Namespace, config: Config) -> int:
    """Exit code of `check` with --index or --key: FAULTS if the sample is bad."""
    plan = local_stream.chosen(config, args.stream)
    local_stream.like_a_worker(args)
    stream = local_stream.LocalStream(config, plan).stream
    index = args.index if args.index is not None else _index_of(stream, args.key)
    if index >= stream.source.total:
        raise CommandError(
            f"--index {index}: stream {plan.name!r} has {stream.source.total} samples, 0 to "
            f"{stream.source.total - 1}",
            USAGE,
        )
    show(
        f"{plan.name}  sample {key_of(stream, index)!r} (index {index}), seed {plan.seed}, epoch 0",
        flush=True,
    )
    stages = _Stages()
    try:
        if stream.source.awaits(0):
            seed_epoch(plan.seed, 0)
            stream.source.tell(0)
        seed_sample(plan.seed, 0, index)
        sample = stream.sample_pipeline.make(SampleRequest(plan.seed, 0, index), stages.note)
        specs = stream.sample_pipeline.specs(sample)
        fields = stream.sample_pipeline.fields(sample)
    except SampleFault as fault:
        stages.end()
        sys.stdout.flush()
        if fault.traceback:
            sys.stderr.write(plain(f"{fault.traceback}\n"))
        tell(f"it failed in {fault.stage}: {fault.error}: {fault.message}")
        return FAULTS
    stages.end()
    for spec in specs:
        show(
            f"  {field(spec.name, spec.dtype, spec.shape, spec.kind)}  "
            f"{_summary(fields[spec.name])}"
        )
    if isinstance(sample, WholeSample):
        for name, value in top_values(sample.value).items():
            if name not in fields:
                show(f"  {name} {type(value).__name__}  {reprlib.repr(value)}")
    return FINE


class _Stages:
    """Prints each stage with its milliseconds once it is over."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._since_s = 0.0

    def note(self, stage: Stage) -> None:
        self.end()
        self._stage, self._since_s = stage, time.perf_counter()

    def end(self) -> None:
        if self._stage is not None:
            show(
                f"  {self._stage.name.lower():<10} "
                f"{(time.perf_counter() - self._since_s) * 1e3:8.2f} ms",
                flush=True,
            )
            self._stage = None


def _index_of(stream: Any, key: str) -> int:
    """The sample of this name; all are looked through. Raises CommandError."""
    source = stream.source
    if source.keys == "index":
        if not key.isdecimal() or int(key) >= source.total:
            raise CommandError(
                f"--key {key}: keys here are the numbers 0 to {source.total - 1}", USAGE
            )
        return int(key)
    found = next((index for index in range(source.total) if key_of(stream, index) == key), None)
    if found is None:
        raise CommandError(
            f"--key {key}: none of {source.total} samples has that key; the first is "
            f"{key_of(stream, 0)!r}",
            NO_START,
        )
    return found


def _summary(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return f"{value[:60]!r}"
    if value.size == 0:
        return "empty"
    if value.size <= 4:
        return str(value.tolist())
    return f"from {value.min():g} to {value.max():g}" if value.dtype.kind in "iufb" else ""

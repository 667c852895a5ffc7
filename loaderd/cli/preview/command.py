"""`loaderd preview`: the batch at a place of the order, as the trainer gets it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loaderd.cli.exit_codes import FINE, NO_START, USAGE, CommandError, need
from loaderd.cli.output import show_json, tell
from loaderd.cli.parser import PAGE_AT_OUTPUT
from loaderd.cli.status import size
from loaderd.core.jobs import Stage
from loaderd.server.admission import OpenedStream, epoch_positions
from loaderd_wire.slices import Cursor, EpochShape, Slice, slice_at, steps_left


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd preview`; CommandError names a place that is not in the epoch."""
    need("lmdb", "simplejpeg", "cv2", "PIL")
    from loaderd.cli import local_stream
    from loaderd.config import load

    settings = load.load(args.config, os.environ, os.getuid())
    plan = local_stream.chosen(settings, args.stream)
    sheet, page = _outputs(args)
    local_stream.like_a_worker(args)
    table = local_stream.LocalStream(settings, plan)
    found = table.probe()
    shape = _shape(args, OpenedStream(plan, found))
    cursor, part = _place(args, shape)
    seed = plan.seed if args.seed is None else args.seed
    drawn = DrawnWords()
    table.stream.sample_pipeline.tell_ops(drawn.add)
    rows = table.rows(
        seed,
        args.epoch,
        part.start,
        part.rows,
        local_stream.NullStatusLine(drawn.stage),
        epoch_samples=shape.samples,
        policy="" if plan.on_error == "replace" else "skip",
    )
    made = [rows.make(row) for row in range(part.rows - len(rows.absent))]
    fields = table.stream.sample_pipeline.fields
    samples = [None if sample is None else fields(sample) for sample in made]
    described = _described(table, shape, part, rows, samples)
    for row, words in drawn.by_row.items():
        described[row]["drawn"] = words
    facts = _facts(args, plan.name, seed, shape, cursor, part, described)
    if args.json:
        show_json(facts)
    if sheet or page:
        from loaderd.cli.preview.panels import PanelMaker

        maker = PanelMaker(plan, table.stream.source.classes)
        panels = [None if sample is None else maker.of(sample) for sample in samples]
        if sheet:
            _draw(sheet, facts, samples, panels, plan.modes())
        if page:
            _write_page(page, facts, panels)
    return FINE


def _outputs(args: argparse.Namespace) -> tuple[str, str]:
    """Where the contact sheet and the page go, "" for nowhere. Raises CommandError."""
    sheet, page = args.output or "", args.html or ""
    if page == PAGE_AT_OUTPUT or (not page and sheet.lower().endswith((".html", ".htm"))):
        sheet, page = "", sheet
        if not page:
            raise CommandError("--html: name the page: --html OUT.html", USAGE)
    if page.lower().endswith((".png", ".jpg", ".jpeg")):
        raise CommandError(f"--html {page}: a page ends in .html; a picture is -o {page}", USAGE)
    if not (args.json or sheet or page):
        raise CommandError(
            "give -o OUT.png, or --json to print the keys only, or --html OUT.html", USAGE
        )
    return sheet, page


class DrawnWords:
    """What the transforms drew for each row, in words."""

    def __init__(self) -> None:
        self.by_row: dict[int, list[str]] = {}
        self._row = 0

    def stage(self, row: int, stage: Stage) -> None:
        """A row has come to this stage: one that is read, is begun anew."""
        self._row = row
        if stage is Stage.READ:
            self.by_row.pop(row, None)

    def add(self, words: str) -> None:
        """Of the row that is being made."""
        if words:
            self.by_row.setdefault(self._row, []).append(words)


def _shape(args: argparse.Namespace, stream: OpenedStream) -> EpochShape:
    plan = stream.plan
    if args.rank >= args.world_size:
        raise CommandError(f"--rank {args.rank} is not below --world-size {args.world_size}", USAGE)
    batch_size = args.batch_size or plan.batch_size
    shape = EpochShape(
        epoch_positions(stream, batch_size, args.world_size),
        batch_size,
        args.rank,
        args.world_size,
        plan.drop_last,
        uneven_tail=plan.tail == "short",
        whole_batches=plan.bucket_by is not None,
    )
    if steps_left(shape, 0) == 0:
        raise CommandError(
            f"an epoch of {stream.facts.samples} samples has no whole step of {shape.world_size} x "
            f"{shape.batch_size}; use a smaller --batch-size",
            USAGE,
        )
    return shape


def _place(args: argparse.Namespace, shape: EpochShape) -> tuple[Cursor, Slice]:
    """The batch that is asked for. Raises CommandError where there is none."""
    block = shape.world_size * shape.batch_size
    if args.position is None:
        step = args.step or 0
        steps = steps_left(shape, 0)
        if step >= steps:
            raise CommandError(
                f"--step {step}: an epoch has {steps} steps, 0 to {steps - 1}", USAGE
            )
        cursor = Cursor(args.epoch, step * block, step)
    else:
        cursor = Cursor(args.epoch, args.position, args.position // block)
    try:
        return cursor, slice_at(shape, cursor)
    except ValueError:
        last = shape.samples - block if shape.drop_last else shape.samples - 1
        raise CommandError(
            f"--position {cursor.position}: the last step of an epoch begins at {last}; use a "
            f"position from 0 to {last}",
            USAGE,
        ) from None


def _described(
    table: Any, shape: EpochShape, part: Slice, rows: Any, samples: list[Any]
) -> list[dict[str, Any]]:
    from loaderd.worker.sample_runner import key_of

    bad = {each.row: each.sample for each in rows.bad}
    described: list[dict[str, Any]] = []
    for row, sample in enumerate(samples):
        index = int(rows.indices[row])
        entry: dict[str, Any] = {
            "position": (part.start + row) % shape.samples,
            "index": index,
            "key": key_of(table.stream, index),
            **({"part": path} if (path := table.stream.source.part(index)) else {}),
        }
        if sample is not None and (label := table.label(sample)):
            entry["label"] = label
        if row in bad:
            entry["bad"] = bad[row].line()
        described.append(entry)
    return described


def _facts(
    args: argparse.Namespace,
    stream: str,
    seed: int,
    shape: EpochShape,
    cursor: Cursor,
    part: Slice,
    rows: list[Any],
) -> dict[str, Any]:
    return {
        "stream": stream,
        "seed": seed,
        "epoch": args.epoch,
        "step": cursor.step,
        "position": cursor.position,
        "rank": shape.rank,
        "world_size": shape.world_size,
        "start": part.start,
        "rows": rows,
    }


def _draw(
    output: str, facts: dict[str, Any], samples: list[Any], panels: list[Any], modes: Any
) -> None:
    from loaderd.cli.preview import contact_sheet, sheet_cells

    title = (
        "{stream}  seed {seed}  epoch {epoch}  step {step}  position {position}  rank {rank} "
        "of {world_size}"
    ).format(**facts)
    cells = [
        contact_sheet.Cell(
            None if sample is None else sheet_cells.picture(sample, shown, modes),
            (
                entry.get("label") or f"index {entry['index']}",
                entry["key"],
                *([entry["bad"]] if "bad" in entry else []),
            ),
            "bad" in entry,
            *sheet_cells.marks(shown),
        )
        for entry, sample, shown in zip(facts["rows"], samples, panels, strict=True)
    ]
    with _writing(output):
        contact_sheet.draw(f"{title}  {len(samples)} rows", cells).save(output, format="PNG")
    tell(f"{output}: {title}, {len(samples)} rows")


def _write_page(output: str, facts: dict[str, Any], panels: list[Any]) -> None:
    from loaderd.cli.preview.page import page

    text = page(facts, panels)
    with _writing(output), open(output, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    tell(f"{output}: a page of {len(panels)} rows, {size(len(text))}")


@contextmanager
def _writing(output: str) -> Iterator[None]:
    """What the system refuses in it is told with the file's name."""
    try:
        yield
    except OSError as error:
        raise CommandError(
            f"{output}: cannot be written: {error.strerror or error}", NO_START
        ) from None

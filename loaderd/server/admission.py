"""Whether a client may have what its Hello asks for, and what that is exactly.

Pure: no socket, no memory is touched here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loaderd.config.order_keys import BALANCED
from loaderd.config.stream import StreamConfig
from loaderd.core.bucket_plan import batches_of
from loaderd.data.selection.selection import buckets_of_stream
from loaderd.engine.messages import StreamInfo
from loaderd.server.share_window import share_window
from loaderd_wire.errors import ConfigError, RefusedError, StreamChangedError
from loaderd_wire.facts import (
    CODE,
    apart_from_code,
    comparable,
    differences,
    edited_code,
    without_code,
)
from loaderd_wire.hints import few
from loaderd_wire.limits import CLIENT_FIELDS, MAX_INT, MAX_PREFETCH, MAX_ROWS
from loaderd_wire.messages import OLDEST, PROTOCOL, SHARES, Hello, Segment
from loaderd_wire.slices import EpochShape, steps_left
from loaderd_wire.slots import FieldSpec, slot_layout

# one that the trainer holds, one for the batch that next() hands over while the last is still held
SPARE_SLOTS = 2
MOST_CODE = 64  # files of code that have a fact each
# facts that a source of a mixture has of its own
OF_SAMPLES = {"layout", "decode", "transforms", "views", "nonfinite"}
LONG_FACT = 4000  # characters; a longer fact is known by its hash


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream that has been opened: what the config says, and what was found."""

    plan: StreamConfig
    facts: StreamInfo


@dataclass(frozen=True, slots=True)
class AdmittedStream:
    """What a session will be.

    Attributes:
        shape: How its epochs are cut into steps.
        seed: Of its order and its randomness.
        prefetch: Batches made ahead.
        fields: As asked, in that order.
        segment: Not reserved yet; it has the number that it was given.
        order: Facts of the order, for the client's state.
        content: Facts of the data, likewise.
        share_window: Above 0: it may share its batches with sessions whose plan is the same. A
            batch is kept for those that will want it as one of their next so many.
    """

    shape: EpochShape
    seed: int
    prefetch: int
    fields: tuple[FieldSpec, ...]
    segment: Segment
    order: dict[str, str]
    content: dict[str, str]
    share_window: int = 0

    @property
    def bytes(self) -> int:
        """Of all slots together."""
        return self.segment.slots * self.segment.slot_bytes

    @property
    def plan(self) -> tuple[EpochShape, int, tuple[FieldSpec, ...]]:
        """What sessions of one stream that share their batches have in common."""
        return self.shape, self.seed, self.fields


def check_protocol(protocol: int) -> None:
    """Raises RefusedError."""
    if not OLDEST <= protocol <= PROTOCOL:
        raise RefusedError(
            f"the client uses protocol {protocol}, this daemon {PROTOCOL}: install the same "
            "version of loaderd on both sides"
        )


def no_stream(name: str, names: Collection[str]) -> ConfigError:
    """The error for a stream that the config does not have; it is returned, not raised."""
    what = f"no stream {name!r}" if name else "no stream is named"
    return ConfigError(f"{what}; there are: {few(names)}")


def check_known(hello: Hello, names: Collection[str], config_path: str) -> None:
    """Check that the daemon of this config has such a stream at all, opened or not.

    Args:
        hello: What the client asks for.
        names: Of all streams.
        config_path: The config file as the wire spells it; "" for none.

    Raises:
        ConfigError: It has none of that name.
        RefusedError: The client means another config.
    """
    check_protocol(hello.protocol)
    if hello.config not in ("", config_path):
        raise ConfigError(
            f"the daemon on this socket serves {config_path or 'no config file'}, not "
            f"{hello.config}"
        )
    if hello.stream not in names:
        raise no_stream(hello.stream, names)


def admit(
    hello: Hello, stream: OpenedStream, segment: int, *, replay: bool = False
) -> AdmittedStream:
    """What the session of this Hello is, which is `check_known`.

    A client that began with another daemon is not taken where the first batches are replayed.

    Raises ConfigError, RefusedError or StreamChangedError, whose text is for the trainer's user.
    """
    shape = _shape(hello, stream)
    fields = _fields(hello, stream)
    seed = stream.plan.seed if hello.seed is None else hello.seed
    order, content = order_facts(stream, seed), content_facts(stream, hello.fields)
    if stream.plan.epoch_steps:
        content["epoch_samples"] = str(shape.samples)
    if stream.plan.bucket_by:
        order["batch_size"] = str(shape.batch_size)
    if replay:
        content["replay"] = "the first batches again and again"
    _check_same(hello, order, content)
    if not 1 <= hello.prefetch <= MAX_PREFETCH:
        raise ConfigError(f"prefetch = {hello.prefetch}: use 1 to {MAX_PREFETCH}")
    can_share = hello.protocol >= SHARES and not replay
    window = share_window(hello.shared, hello.prefetch, stream.plan) if can_share else 0
    slots = window + hello.prefetch + SPARE_SLOTS
    made = sized(stream, fields, shape.batch_size, slots, segment)
    return AdmittedStream(shape, seed, hello.prefetch, fields, made, order, content, window)


def sized(
    stream: OpenedStream,
    fields: tuple[FieldSpec, ...],
    rows: int,
    slots: int,
    segment: int,
    *,
    tail_row_bytes: int = 0,
    body_bytes: int = 0,
) -> Segment:
    """A segment that is at least as roomy as the probe of the stream found necessary.

    Args:
        stream: The stream.
        fields: What a slot holds.
        rows: Of a batch.
        slots: How many slots.
        segment: Its number.
        tail_row_bytes: Bytes of tail a row, at least.
        body_bytes: Bytes of body, at least.
    """
    facts = stream.facts
    tail = max(tail_row_bytes, facts.tail_row_bytes)
    # Measured on a batch of the stream's own size; should a batch of another size need more, the
    # segment grows.
    body = (
        max(body_bytes, -(-facts.body_bytes * rows // stream.plan.batch_size))
        if facts.collated
        else 0
    )
    layout = slot_layout(
        () if facts.collated else fields, rows, tail_row_bytes=tail, body_bytes=body
    )
    return Segment(segment, slots, layout.slot_bytes, tail, body)


def order_facts(stream: OpenedStream, seed: int) -> dict[str, str]:
    """The order fingerprint: what makes position p of an epoch another sample.

    Never a path or a time.
    """
    plan = stream.plan
    if plan.sources:
        return _mixture_order_facts(stream, seed)
    return {
        "samples": str(stream.facts.samples),
        "split": plan.split,
        "split_by": plan.split_by,
        "shuffle": str(plan.shuffle),
        "seed": str(seed),
        "data": stream.facts.identity,
        **({"values": stream.facts.values} if stream.facts.values else {}),
        **_selected(stream),
    }


def _selected(stream: OpenedStream) -> dict[str, str]:
    """What else decides which samples come, and how often; each only where it is set."""
    plan, selection = stream.plan, stream.facts.selection
    weights = BALANCED if plan.weights == BALANCED else selection.weights_hash
    words = {
        "keys": selection.keys_hash,
        "group": plan.group or "",
        "weights": weights,
        "repeat": str(plan.repeat) if plan.repeat > 1 else "",
        "bucket_by": plan.bucket_by or "",
        "max_tokens": str(plan.max_tokens) if plan.max_tokens else "",
        "multiple": str(plan.multiple) if plan.bucket_by else "",
        "lengths": os.path.basename(selection.ranked).partition(".")[0],
        # an endless order; how many steps an epoch has may change
        "epoch_steps": "set" if plan.epoch_steps else "",
    }
    return {name: value for name, value in words.items() if value}


def _mixture_order_facts(stream: OpenedStream, seed: int) -> dict[str, str]:
    plan = stream.plan
    weights = ", ".join(f"{name} = {weight}" for name, weight in plan.of.items())
    return {
        "samples": str(stream.facts.samples),
        "of": f"{{{weights}}}",
        "stop": "" if plan.epoch_steps else plan.stop,
        "seed": str(seed),
    } | {
        f"{each.name}.{name}": fact
        for each, facts in zip(plan.sources, stream.facts.sources, strict=True)
        for name, fact in order_facts(OpenedStream(each, facts), each.seed).items()
    }


def content_facts(stream: OpenedStream, fields: tuple[str, ...] | None) -> dict[str, str]:
    """The content fingerprint: what makes another batch of the same samples."""
    plan = stream.plan
    sources = {
        f"{each.name}.{name}": fact
        for each, facts in zip(plan.sources, stream.facts.sources, strict=True)
        for name, fact in content_facts(OpenedStream(each, facts), None).items()
        if name in OF_SAMPLES
    }
    return sources | {
        "layout": _fact(
            [plan.dataset, plan.dataset_args]
            if plan.dataset
            else [stream.facts.layout, plan.layout_args, *_said(plan)]
        ),
        "decode": (plan.mode + ", upright" * plan.exif) if plan.decode else "no",
        "transforms": _fact([step.facts() for step in plan.transforms]),
        **({"views": str(plan.views)} if plan.views > 1 else {}),
        **({"classes": _fact(stream.facts.classes)} if plan.classes else {}),
        "jpeg_extension": stream.facts.jpeg_extension,
        "collate": plan.collate,
        **({"pad": _fact(plan.pad)} if plan.pad else {}),
        **({"ragged": _fact([plan.ragged, plan.ragged_as])} if plan.ragged else {}),
        "fields": "all"
        if fields is None
        else ",".join(name for name in fields if name not in CLIENT_FIELDS),
        "on_error": plan.on_error,
        "empty": plan.empty,
        "nonfinite": plan.nonfinite,
        **_code_facts(stream.facts),
    }


def _said(plan: StreamConfig) -> list[object]:
    """What the config says of a database whose layout loaderd knows; nothing if it says nothing."""
    said = {name: getattr(plan, name) for name in ("key_format", "dtype", "shape", "fields")}
    parts = [part.said for part in plan.parts] if any(part.said for part in plan.parts) else []
    words = {name: value for name, value in {**said, "parts": parts}.items() if value}
    return [words] if words else []


def _code_facts(facts: StreamInfo) -> dict[str, str]:
    """A fact for each of the users' modules, and one for all those beyond MOST_CODE."""
    found = {CODE + module.path: module.digest for module in facts.code[:MOST_CODE]}
    rest = facts.code[MOST_CODE:]
    if rest:
        found[f"{CODE}{len(rest)} more files"] = hashlib.sha256(
            " ".join(module.digest for module in rest).encode()
        ).hexdigest()[:16]
    return found


def _fact(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text if len(text) <= LONG_FACT else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _shape(hello: Hello, stream: OpenedStream) -> EpochShape:
    plan = stream.plan
    batch_size = plan.batch_size if hello.batch_size is None else hello.batch_size
    tail = plan.tail_for(hello.drop_last)
    if not 1 <= batch_size <= MAX_ROWS:
        raise ConfigError(f"batch_size = {batch_size}: use 1 to {MAX_ROWS}")
    if not 0 <= hello.rank < hello.world_size:
        raise ConfigError(f"rank = {hello.rank} must be below world_size = {hello.world_size}")
    if plan.on_error == "skip" and plan.empty == "skip" and hello.world_size > 1:
        raise ConfigError(
            f'stream {plan.name!r} has on_error = "skip", and world_size = {hello.world_size}: a '
            "rank whose batch lost all its rows would go "
            'on without the others; set on_error = "replace", or empty = "deliver" where your '
            "training takes batches without rows"
        )
    positions = epoch_positions(stream, batch_size, hello.world_size)
    if positions > MAX_INT:
        raise ConfigError(
            f"epoch_steps = {plan.epoch_steps} of batch_size = {batch_size} and world_size = "
            f"{hello.world_size} are {positions} samples, more than can be counted; use fewer steps"
        )
    shape = EpochShape(
        positions,
        batch_size,
        hello.rank,
        hello.world_size,
        drop_last=tail == "drop",
        uneven_tail=tail == "short",
        whole_batches=plan.bucket_by is not None,
    )
    if steps_left(shape, 0) == 0:
        raise ConfigError(
            f"an epoch of stream {plan.name!r} has no step: n = {shape.samples} samples, a whole "
            "step takes "
            f"world_size = {shape.world_size} times batch_size = {batch_size} of them; set "
            "drop_last = false, or a smaller batch_size"
        )
    return shape


def epoch_positions(stream: OpenedStream, batch_size: int, world_size: int) -> int:
    """Positions of an epoch, over all ranks.

    Args:
        stream: The stream.
        batch_size: Rows of a batch.
        world_size: Number of ranks.

    Raises:
        ConfigError: A sample fits into no batch.
    """
    own = own_positions(stream, batch_size)
    return own or stream.plan.positions(stream.facts.samples, batch_size, world_size)


def own_positions(stream: OpenedStream, batch_size: int) -> int:
    """Positions of all batches of an epoch, where batches have their own rows; 0 elsewhere.

    Raises:
        ConfigError: A sample fits into no batch.
    """
    plan = stream.plan
    if not plan.bucket_by:
        return 0
    try:
        return batch_size * batches_of(buckets_of_stream(plan, stream.facts.selection, batch_size))
    except ValueError as error:
        raise ConfigError(f"stream {plan.name!r}: {error}; raise max_tokens") from None


def _fields(hello: Hello, stream: OpenedStream) -> tuple[FieldSpec, ...]:
    known = {spec.name: spec for spec in stream.facts.specs}
    if hello.fields is None:
        return stream.facts.specs
    unknown = [name for name in hello.fields if name not in known and name not in CLIENT_FIELDS]
    if unknown or len(set(hello.fields)) != len(hello.fields):
        what = (
            f"unknown fields {', '.join(map(repr, unknown))}"
            if unknown
            else "fields must name none twice"
        )
        raise ConfigError(
            f"{what}; stream {hello.stream!r} has: {few(known)} (and {', '.join(CLIENT_FIELDS)})"
        )
    return tuple(known[name] for name in hello.fields if name in known)


def _check_same(hello: Hello, order: Mapping[str, str], content: Mapping[str, str]) -> None:
    """A client that comes back must find what it began with."""
    edited = edited_code(hello.content, content)
    same_code = (apart_from_code(hello.order, edited), apart_from_code(order, edited))
    for was, now in (same_code, (hello.content, content)):
        known = without_code(was)  # of other code the client is told, and goes on
        changed = differences(known, comparable(known, now)) if known else ""
        if changed:
            raise StreamChangedError(
                f"stream {hello.stream!r} has changed: {changed}; restore the old data and "
                "settings, or start a new training with a new Loader"
            )

"""The messages: their fields in the order of the wire, and what each of them means."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from loaderd_wire import messages as m

MESSAGES: tuple[type, ...] = typing.get_args(m.Message)
# A field may be added at the end; any other change needs another PROTOCOL.
FIELDS = {
    "Segment": "segment slots slot_bytes tail_row_bytes body_bytes",
    "Hello": (
        "protocol stream batch_size seed drop_last rank world_size prefetch fields "
        "held_bytes order content config shared"
    ),
    "Starting": "text",
    "Rejected": "error text",
    "Welcome": "session token daemon samples batch_size seed drop_last specs form collated keys "
    "segment order content classes on_error "
    "max_errors empty warnings tail source_names source_offsets parts firsts "
    "whole_batches shared",
    "Bye": "reason",
    "Ask": "protocol what",
    "Report": "body",
    "Progress": (
        "session seq plan epoch position step taken have again ping waiting released stacks "
        "waited_s"
    ),
    "Descriptor": (
        "session plan k epoch start rows segment slot generation filled failed chunks bad verdict"
    ),
    "Pulse": "session seq turns made story detail",
    "Failure": "session error text",
}


def test_the_fields_of_a_message_stand_in_the_order_that_the_wire_has() -> None:
    assert (m.OLDEST, m.PROTOCOL, m.SHARES) == (2, 4, 4)
    assert {
        cls.__name__: " ".join(field.name for field in dataclasses.fields(cls)) for cls in MESSAGES
    } == FIELDS


@pytest.mark.parametrize("message", [*MESSAGES, m.Released], ids=lambda cls: cls.__name__)
def test_a_message_is_frozen_and_says_what_each_of_its_fields_is(message: type) -> None:
    lines = [line.strip() for line in f"{message.__doc__}".splitlines()]
    assert message.__dataclass_params__.frozen  # dataclasses has no other way to ask
    for field in dataclasses.fields(message):
        assert any(line.startswith(f"{field.name}: ") for line in lines), field.name

"""What `state_dict()` says: a cursor, the fingerprints it belongs to, and the errors so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd_wire.errors import ConfigError
from loaderd_wire.facts import (
    apart_from_code,
    comparable,
    differences,
    edited_code,
    without_code,
)
from loaderd_wire.slices import MAX_EPOCH, Cursor

VERSION = 1
MAX = 2 * MAX_EPOCH  # an epoch counted on from the last that may be asked for is still a state
NUMPY = str(np.__version__)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - its stubs leave it out


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Where a training is.

    Attributes:
        cursor: The next batch.
        order: Fingerprint of the order as named facts; None as long as nobody knows it.
        content: Likewise of the samples.
        rows: As in ErrorBudget.
        bad: As in ErrorBudget.
        numpy: Version of numpy, whose random numbers user code may use.
    """

    cursor: Cursor
    order: dict[str, str] | None = None
    content: dict[str, str] | None = None
    rows: int = 0
    bad: int = 0
    numpy: str = NUMPY

    def to_dict(self) -> dict[str, Any]:
        """The state as plain ints, strings and dicts.

        It is the same on every rank of a run whose ranks have met the same number of bad samples.
        """
        return {
            "version": VERSION,
            "epoch": self.cursor.epoch,
            "position": self.cursor.position,
            "step": self.cursor.step,
            "order": dict(self.order or {}),
            "content": dict(self.content or {}),
            "numpy": self.numpy,
            "errors": {"rows": self.rows, "bad": self.bad},
        }

    @classmethod
    def from_dict(cls, state: Any) -> LoaderState:
        """Read what `to_dict` returned.

        Raises:
            ConfigError: An entry cannot be; the text names it.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(
                f"a state is what state_dict() returned, not {type(state).__name__} {state!r:.60}"
            )
        known: Mapping[str, Any] = state  # pyright: ignore[reportUnknownVariableType] - each entry is checked below
        version = known.get("version")
        if version is None:
            inside = ", ".join(repr(name) for name in list(known)[:5]) or "nothing"
            raise ConfigError(
                f"a state is what state_dict() returned, this is a table of {inside}: give the "
                'entry that holds it, as in checkpoint["loader"]'
            )
        if version != VERSION:
            raise ConfigError(
                f"state: version={version!r:.60}, this loaderd reads version {VERSION}"
            )
        errors = known.get("errors")
        if not isinstance(errors, Mapping):
            raise ConfigError(f"state: errors={errors!r:.60} is not what state_dict() returned")
        counted: Mapping[str, Any] = errors  # pyright: ignore[reportUnknownVariableType] - each entry is checked below
        cursor = Cursor(_whole(known, "epoch"), _whole(known, "position"), _whole(known, "step"))
        rows, bad = _whole(counted, "rows"), _whole(counted, "bad")
        if cursor.step > cursor.position:  # a step has a sample or more
            raise ConfigError(f"state: step={cursor.step} cannot be at position={cursor.position}")
        if bad > rows:
            raise ConfigError(f"state: errors has bad={bad} of rows={rows}")
        return cls(
            cursor,
            _facts(known, "order"),
            _facts(known, "content"),
            rows,
            bad,
            _text(known, "numpy"),
        )

    def fits(self, order: Mapping[str, str], content: Mapping[str, str], samples: int) -> list[str]:
        """Compare the state with a stream's own facts.

        Args:
            order: The stream's.
            content: The stream's.
            samples: Length of an epoch.

        Returns:
            Warnings for the user.

        Raises:
            ConfigError: The order differs, or has no such position.
        """
        edited = edited_code(self.content or content, content)
        known, order = apart_from_code(self.order or {}, edited), apart_from_code(order, edited)
        # Of a fact that the state does not know, since an older version has saved it, there is
        # nothing to compare.
        differing = differences(known, comparable(known, order)) if known else ""
        if differing:
            also = differences(without_code(self.content or {}), without_code(content))
            raise ConfigError(
                f"this state belongs to another order of samples: {differing}; load it into the "
                "stream that it came from, or begin without a state"
                f"{f' (of its content {also})' if also and self.content else ''}"
            )
        if self.cursor.position > samples:
            raise ConfigError(
                f"state: position={self.cursor.position} is beyond the epoch's {samples} samples"
            )
        warnings: list[str] = []
        known = self.content or content
        changed = differences(without_code(known), without_code(content))
        if changed:
            warnings.append(
                f"the stream has changed since this state was saved: {changed}; going on at its "
                "place in the order"
            )
        if edited:
            warnings.append(
                f"code has changed since this state was saved: {edited}; going on at its place in "
                "the order with the new code"
            )
        if self.numpy != NUMPY:
            warnings.append(
                f"this state was saved with numpy {self.numpy:.60}, this is {NUMPY}: random "
                "numbers of user code may differ"
            )
        return warnings


def _whole(known: Mapping[str, Any], name: str) -> int:
    value = known.get(name)
    if type(value) is not int or not 0 <= value <= MAX:
        raise ConfigError(f"state: {name}={value!r:.60} is not a whole number")
    return value


def _text(known: Mapping[str, Any], name: str) -> str:
    value = known.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"state: {name}={value!r:.60} is not a text")
    return value


def _facts(known: Mapping[str, Any], name: str) -> dict[str, str] | None:
    value = known.get(name)
    if not isinstance(value, Mapping):
        raise ConfigError(f"state: {name}={value!r:.60} is not a dict of facts")
    facts: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType] - checked in the next line
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in facts.items()):
        raise ConfigError(f"state: {name} has entries that are not texts")
    return facts or None

"""Any map-style dataset as a source: `dataset = "pkg.module:Class"`.

It is built once a process, and used through its own methods alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import ANYTHING, SourceError, user_traceback
from loaderd.data.sample import BadValue, Sample, flatten
from loaderd.data.sources.dataset_values import of_tables, own_fingerprint
from loaderd.data.user_code import build, count_of, failure
from loaderd.data.whole_sample import top_fields
from loaderd_wire.slots import FieldSpec


class DatasetSource:
    """The dataset and what is known of it.

    Attributes:
        name: Its class, as the config has it.
        total: Number of samples.
        many: It has `__getitems__`, which fetches several samples at once.
        classes: Names of the labels, () if it has none.
        form: "dict" or "tuple"; "" until a first sample was read.
        identity: Names the dataset by its class, its arguments and its length.
        values: A hash over what it holds, as far as that can be told without a sample; else "".
    """

    stored_names = False
    user_code = True
    # what a database has more
    codec = state = ""
    warnings: tuple[str, ...] = ()

    def __init__(self, plan: StreamConfig) -> None:
        assert plan.dataset is not None
        self.name = plan.dataset
        self._inner: Any = build(plan.dataset, "dataset", **plan.dataset_args)
        self.total = count_of(self._inner, plan.dataset, "dataset")
        self.many = callable(getattr(self._inner, "__getitems__", None))
        classes = getattr(self._inner, "classes", ())
        self.classes = (
            tuple(classes)
            if isinstance(classes, (list, tuple)) and all(isinstance(c, str) for c in classes)
            else ()
        )
        set_epoch = getattr(self._inner, "set_epoch", None)
        self._set_epoch = set_epoch if callable(set_epoch) else None
        self._epoch: int | None = None  # the one that it was told last
        self.form = ""  # known from the first sample on; of whole samples that of the latest
        self._whole = plan.whole_samples
        self._arrays = plan.free_fields
        args = json.dumps(plan.dataset_args, sort_keys=True, default=repr)
        digest = hashlib.sha256(f"{plan.dataset}\n{args}\n{self.total}".encode()).hexdigest()[:32]
        self.identity = f"{plan.dataset}:{self.total}:{digest}"
        self.values = self._fingerprint() or of_tables(self._inner, self.total)

    def _fingerprint(self) -> str:
        try:
            return own_fingerprint(self._inner)
        except ANYTHING as error:
            raise SourceError(
                f"{self.name}: its fingerprint failed: {failure(error)}", user_traceback(error)
            ) from None

    @property
    def inner(self) -> Any:
        """The user's dataset itself."""
        return self._inner

    def awaits(self, epoch: int) -> bool:
        """Whether the dataset has `set_epoch`, and was last told another epoch than this."""
        return self._set_epoch is not None and epoch != self._epoch

    def tell(self, epoch: int) -> None:
        """Tell the dataset the epoch of the samples that are read next.

        Raises whatever its `set_epoch` raises. It is then told again before the next sample.
        """
        assert self._set_epoch is not None
        self._epoch = None
        self._set_epoch(epoch)
        self._epoch = epoch

    def value(self, index: int) -> Any:
        """What the dataset returns for this sample, not yet looked at."""
        return self._inner[index]

    def read(self, index: int, mode: str | DecodeModes) -> Sample:
        """Sample `index`."""
        return self.take(self.value(index), mode)

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """What `__getitems__` returns, one value an index, not yet looked at.

        Raises:
            BadValue: It returned something else than as many values.
        """
        values = self._inner.__getitems__(list(indices))
        rows = hasattr(values, "__len__") and not isinstance(values, (Mapping, str, bytes))
        if not rows or len(values) != len(indices):
            got = f"{len(values)} values" if rows else f"a {type(values).__name__}"
            raise BadValue(f"{self.name}.__getitems__ of {len(indices)} indices returned {got}")
        return list(values)

    def take(self, value: Any, mode: str | DecodeModes) -> Sample:
        """Such a value, or one of those of `fetch`, as a sample.

        Raises:
            BadValue: It is no sample, or one of another form than earlier ones.
        """
        if self._whole:
            sample, self.form = top_fields(value, mode)
            return sample
        sample, form = flatten(value, mode, self._arrays)
        if self.form and form != self.form:
            raise BadValue(
                f"{self.name} returned a {type(value).__name__} where earlier samples were a "
                f"{self.form}"
            )
        self.form = form
        return sample

    def key(self, index: int) -> str:
        """Its index: a dataset has no names."""
        return str(index)

    def expect(self, state: str) -> str:
        """Nothing of a dataset is watched."""
        return ""

    def changed(self) -> str:
        """Nothing of a dataset is watched."""
        return ""

    def told(self) -> list[str]:
        """Nothing of a dataset is watched."""
        return []

    def bulk(self, specs: tuple[FieldSpec, ...], finite: bool) -> None:
        """Its samples are made by its own code."""
        return None

    def close(self) -> None:
        """Let the dataset go, and whatever it holds open with it."""
        self._inner = self._set_epoch = None

"""A user's `call`: an object or function that is built once, and how it is called for a sample."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import TransformConfig
from loaderd.data.errors import SourceError
from loaderd.data.pipeline import call_styles
from loaderd.data.pipeline.context import SampleContext
from loaderd.data.sample import BadValue
from loaderd.data.user_code import build, find, invoke, parameters, takes

PICTURE_NAMES = ("image", "img", "pic")  # of a sole parameter, as torchvision's own classes have it


class UserCall:
    """One `call` of a config, ready for one sample after the other.

    A class is built with `args`; so is a function all of whose parameters are in `args`: what it
    returns is called then. Any other function gets `args` with every sample.

    Raises SourceError for what cannot be imported or built, or whose draws cannot be seeded.
    """

    def __init__(self, step: TransformConfig, modes: DecodeModes) -> None:
        assert step.call is not None
        self._name = step.call
        self._function, self._args = _built(step.call, dict(step.args))
        self._alone = _takes_one(self._function, self._args)
        self.style = step.options.get("takes") or _style_of(self._function, alone=self._alone)
        self._run = call_styles.make(
            self.style,
            modes,
            self._function,
            step.options.get("field"),
            step.options.get("boxes"),
        )
        self._seed = _seeder_of(self._function, step.call)
        self._epoch = "epoch" not in self._args and takes(self._function, "epoch")
        self._rng = self._way_of_rng()
        words = ["**fields" if self.style == "keywords" else self.style.replace("array", "image")]
        words += {"second": ["rng"], "rng": ["rng=rng"]}.get(self._rng, [])
        words += ["epoch=epoch"] * self._epoch + [f"{arg}=..." for arg in self._args]
        self._how = f"{step.call}({', '.join(words)})"

    def _way_of_rng(self) -> str:
        """How it takes the sample's generator: "second" argument, by its name "rng", or ""."""
        if self.style == "sample" and not self._alone:
            second = [
                each.kind is not each.KEYWORD_ONLY
                for each in parameters(self._function)
                if each.name == "rng"
            ]
            return "rng" if second == [False] else "second"
        return "rng" if "rng" not in self._args and takes(self._function, "rng") else ""

    def __call__(self, making: SampleContext) -> Mapping[str, Any]:
        """The fields of the sample that it makes of one. Raises whatever it raises."""
        named = dict(self._args)
        if self._epoch:
            named["epoch"] = making.epoch
        if self._rng == "rng":
            named["rng"] = making.rng()
        if self._seed is not None:
            self._seed(int(making.rng().integers(1 << 32)))
        more = (making.rng(),) if self._rng == "second" else ()

        def called(*given: Any, **fields: Any) -> Any:
            return invoke(self._function, self._how, *given, *more, **fields, **named)

        returned = self._run(making.sample, called)
        if not isinstance(returned, Mapping):
            kind = "None" if returned is None else f"a {type(returned).__name__}"
            hint = (
                "; to have it make one, give all of its parameters in args"
                if callable(returned)
                else ""
            )
            raise BadValue(
                f"{self._name} returned {kind}: a transform returns a dict of fields{hint}"
            )
        return returned


def _built(name: str, args: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What is called for each sample, and the arguments that it gets each time."""
    found = find(name, "call")
    plain = isinstance(found, types.FunctionType)
    if isinstance(found, type):
        builds = not issubclass(found, Mapping)
    else:
        builds = plain and {each.name for each in parameters(found)} <= set(args)
    if not builds:
        return found, args
    made = build(name, "call", **args)
    if not callable(made):
        raise SourceError(
            f'call = "{name}": it makes a {type(made).__name__}, which cannot be called'
        )
    return made, {}


def _takes_one(function: Any, args: Mapping[str, Any]) -> bool:
    """Whether a sample is all that it can be given beside `args`, the epoch and an rng by name."""
    known = parameters(function)
    places = [
        p
        for p in known
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.name not in args
        and p.name != "epoch"
    ]
    return len(places) == 1 and not any(p.kind is p.VAR_POSITIONAL for p in known)


def _style_of(function: Any, *, alone: bool) -> str:
    """How an object is called, by the library that it is of; a user's own by its parameter."""
    libraries = {
        kind.__module__ for part in call_styles.parts(function) for kind in type(part).__mro__
    }
    for prefix, style in (
        ("albumentations.", "keywords"),
        ("torchvision.transforms.v2.", "tv_tensors"),
        ("torchvision.transforms.", "pil"),
    ):
        if any(f"{library}.".startswith(prefix) for library in libraries):
            return style
    first = next(iter(parameters(function)), None)
    return "pil" if alone and first is not None and first.name in PICTURE_NAMES else "sample"


def _seeder_of(function: Any, name: str) -> Any:
    """What seeds an object with generators of its own; None for one that draws from global ones.

    Raises SourceError for a pipeline of albumentations that cannot be seeded.
    """
    if not any(kind.__module__.startswith("albumentations.") for kind in type(function).__mro__):
        return None
    seed = getattr(function, "set_random_seed", None)
    if seed is None:
        raise SourceError(
            f'call = "{name}": this version of albumentations has no set_random_seed, so its draws '
            "would differ from run to run: install albumentations 2.0 or newer"
        )
    return seed

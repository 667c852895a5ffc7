from __future__ import annotations

import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from loaderd.config.op_params import REQUIRED, expects, fits
from loaderd.config.transforms import OPS, problems, resolved, schema
from loaderd.data.ops.mixing import MIXERS
from loaderd.data.ops.table import MAKERS
from loaderd_testing.deadlines import DEADLINE_S

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("decode", {}),
    ("decode", {"mode": "gray", "field": "mask"}),
    ("resize", {"size": 256}),
    ("resize", {"size": [20, 30]}),
    ("resize", {"size": 20, "interpolation": "bicubic"}),
    ("center_crop", {"size": 1}),
    ("random_crop", {"size": 32, "padding": 4}),
    ("random_resized_crop", {"size": 224}),
    ("random_resized_crop", {"size": 224, "scale": [0.5, 1], "ratio": [1, 1]}),
    ("hflip", {}),
    ("hflip", {"p": 1}),
    ("hflip", {"fields": ["image", "mask"]}),
    ("decode", {"mode": "index", "field": "mask"}),
    ("to_float", {}),
    ("normalize", {"mean": 0.5, "std": [0.2, 0.2, 0.2]}),
    ("to_chw", {"field": "image"}),
    ("vflip", {"p": 0.2}),
    ("rotate90", {"k": 3}),
    ("pad", {"padding": 4}),
    ("pad", {"padding": [1, 2, 3, 4], "fill": [1, 2, 3], "padding_mode": "reflect"}),
    ("long_side", {"size": [32, 320]}),
    ("color_jitter", {"brightness": 0.4, "hue": [-0.1, 0.2]}),
    ("grayscale", {"p": 0.2, "fields": ["left", "right"]}),
    ("gaussian_blur", {"kernel_size": 23, "sigma": 1.5}),
    ("random_erasing", {"value": "random"}),
    ("rand_augment", {"num_ops": 3, "magnitude": 5, "fill": 128}),
    ("mixup", {"num_classes": 10, "alpha": 0.2}),
    ("cutmix", {"num_classes": 10, "labels": "y"}),
]
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("decode", {"mode": "bgr"}, "mode", "wrong"),
    ("resize", {}, "size", "missing"),
    ("resize", {"size": 0}, "size", "wrong"),
    ("resize", {"size": 3, "interpolation": "lanczos"}, "interpolation", "wrong"),
    ("resize", {"size": True}, "size", "wrong"),
    ("resize", {"size": 2.5}, "size", "wrong"),
    ("resize", {"size": [1, 2, 3]}, "size", "wrong"),
    ("resize", {"size": 70_000}, "size", "wrong"),
    ("random_crop", {"size": 3, "padding": -1}, "padding", "wrong"),
    ("random_resized_crop", {"size": 3, "scale": [0.0, 1.0]}, "scale", "wrong"),
    ("random_resized_crop", {"size": 3, "scale": [0.1, 1.1]}, "scale", "wrong"),
    ("hflip", {"p": 1.5}, "p", "wrong"),
    ("hflip", {"p": float("nan")}, "p", "wrong"),
    ("hflip", {"P": 0.5}, "P", "unknown"),
    ("normalize", {"mean": 0.5, "std": 0}, "std", "wrong"),
    ("normalize", {"mean": [], "std": 1}, "mean", "wrong"),
    ("to_chw", {"field": ""}, "field", "wrong"),
    ("hflip", {"fields": []}, "fields", "wrong"),
    ("hflip", {"fields": ["a", "a"]}, "fields", "wrong"),
    ("hflip", {"fields": "a"}, "fields", "wrong"),
    ("hflip", {"fields": ["a"], "field": "b"}, "fields", "wrong"),
    ("normalize", {"mean": 0, "std": 1, "fields": ["a"]}, "fields", "unknown"),
    ("rotate90", {"k": 4}, "k", "wrong"),
    ("pad", {"padding": [1, 2, 3]}, "padding", "wrong"),
    ("pad", {"padding": 1, "padding_mode": "wrap"}, "padding_mode", "wrong"),
    ("color_jitter", {"hue": 0.6}, "hue", "wrong"),
    ("color_jitter", {"hue": -0.1}, "hue", "wrong"),
    ("gaussian_blur", {"kernel_size": 4}, "kernel_size", "wrong"),
    ("random_erasing", {"value": "noise"}, "value", "wrong"),
    ("mixup", {}, "num_classes", "missing"),
]


@pytest.mark.parametrize(("op", "args"), GOOD)
def test_good_arguments_pass_the_check_and_the_schema(op: str, args: dict[str, Any]) -> None:
    assert problems(op, args) == ()
    jsonschema.validate({"op": op, **args}, schema(op))
    assert resolved(op, args).keys() == OPS[op].params.keys()


@pytest.mark.parametrize(("op", "args", "name", "what"), BAD)
def test_a_wrong_argument_is_named_with_what_was_expected(
    op: str, args: dict[str, Any], name: str, what: str
) -> None:
    found = {problem.name: problem for problem in problems(op, args)}
    assert found[name].what == what
    assert found[name].expected
    with pytest.raises(ValueError, match=name):
        resolved(op, args)


# JSON has no NaN
@pytest.mark.parametrize(
    ("op", "args", "name", "what"), [bad for bad in BAD if bad[1].get("p") == bad[1].get("p")]
)
def test_the_schema_refuses_what_the_check_refuses(
    op: str, args: dict[str, Any], name: str, what: str
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"op": op, **args}, schema(op))


def test_all_problems_are_found_at_once() -> None:
    assert {p.name for p in problems("random_resized_crop", {"siez": 1, "scale": [2, 1]})} == {
        "siez",
        "size",
        "scale",
    }


def test_a_range_that_falls_is_wrong() -> None:
    assert (
        problems("random_resized_crop", {"size": 1, "ratio": [2, 1]})[0].expected
        == "[from, to] with from <= to, both from 0.001 to 1000"
    )


def test_defaults_are_values_that_fit() -> None:
    for op in OPS.values():
        for param in op.params.values():
            assert expects(param)
            assert param.default is REQUIRED or param.default is None or fits(param, param.default)


def test_every_op_has_code_and_every_code_an_op() -> None:
    assert set(OPS) == {*MAKERS, *MIXERS, "decode"}


def test_an_unknown_op_names_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown op 'rotate'; there are decode, resize"):
        resolved("rotate", {})


def test_the_table_needs_no_image_library() -> None:
    code = (
        "import sys, loaderd.config.transforms; sys.exit(any(name in sys.modules for name in "
        "('cv2', 'PIL', 'simplejpeg', 'numpy', 'lmdb')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=DEADLINE_S).returncode == 0


def test_a_span_that_ends_before_it_begins_is_wrong() -> None:
    (found,) = problems("color_jitter", {"contrast": [0.5, 0.1]})
    assert (found.name, found.what) == ("contrast", "wrong")

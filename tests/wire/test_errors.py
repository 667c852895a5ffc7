"""The errors of the surface: their family, what they carry, and that they survive the wire and a
pickle.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import msgpack
import pytest

from loaderd_wire import errors
from loaderd_wire.errors import (
    CLASSES,
    BadSample,
    ConfigError,
    LoaderdError,
    ProtocolError,
    SampleError,
    by_handler,
    from_name,
)

BAD = BadSample(7, "cat.jpg", 3, "decode", "ValueError", "no JPEG", "Traceback ...")


def test_a_bad_sample_is_told_in_one_line_whatever_user_code_says() -> None:
    told = BadSample(7, "a\nb", 3, "decode", "ValueError", "no\nJPEG\x1b[2J").line()
    assert told == "sample 'a\\nb' (index 7) failed in decode: ValueError: no\\nJPEG\\x1b[2J"


def test_every_error_is_a_loaderd_error_and_a_runtime_error() -> None:
    named = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, LoaderdError)
    ]
    assert {cls.__name__ for cls in named} == {*CLASSES, "LoaderdError"}
    assert all(issubclass(cls, RuntimeError) for cls in named)
    assert issubclass(ConfigError, ValueError)


def test_an_error_arrives_as_the_class_that_was_named() -> None:
    for name, cls in CLASSES.items():
        arrived = from_name(name, "the text")
        assert type(arrived) is cls
        assert str(arrived) == "the text"


@pytest.mark.parametrize("name", ["", "KeyError", "LoaderdError", "BadSample", "__class__"])
def test_an_error_of_an_unknown_name_is_quoted_not_raised(name: str) -> None:
    arrived = from_name(name, "the text")
    assert type(arrived) is ProtocolError
    assert repr(name) in str(arrived)
    assert "the text" in str(arrived)


def test_a_sample_error_tells_of_its_first_sample_and_keeps_all() -> None:
    other = BadSample(9, "dog.jpg", 4, "read", "KeyError", "gone")
    error = SampleError("two bad samples", (BAD, other))
    assert (error.index, error.key, error.stage, error.remote_traceback) == (
        7,
        "cat.jpg",
        "decode",
        "Traceback ...",
    )
    assert error.errors == (BAD, other)
    assert (SampleError("none").index, SampleError("none").errors) == (None, ())


def test_a_sample_error_survives_a_pickle() -> None:
    for again in (
        pickle.loads(pickle.dumps(SampleError("text", (BAD,)))),
        copy.copy(SampleError("text", (BAD,))),
    ):
        assert (str(again), again.errors, again.key) == ("text", (BAD,), "cat.jpg")


def test_a_bad_sample_is_told_in_one_line() -> None:
    assert BAD.line() == "sample 'cat.jpg' (index 7) failed in decode: ValueError: no JPEG"


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def handler() -> None:
    raise ValueError("in the middle of it")


def test_what_a_handler_raises_in_the_middle_of_a_call_is_told_from_what_the_call_raises() -> None:
    def by_the_package() -> None:
        json.loads("{")

    assert not by_handler(ValueError("never raised"))
    assert not by_handler(caught(lambda: msgpack.unpackb(b"\xc1")), "msgpack")
    assert not by_handler(caught(by_the_package), "json")
    assert by_handler(caught(by_the_package), "msgpack")
    assert by_handler(caught(handler), "msgpack")
    assert by_handler(caught(handler))
    with pytest.raises(ValueError, match="invalid literal") as by_c_code:
        int("x")
    assert not by_handler(by_c_code.value)

from __future__ import annotations

from pathlib import Path

import pytest

from loaderd.data import user_code
from loaderd.data.errors import MAX_MESSAGE, MAX_TRACEBACK, SampleFault, SourceError, user_traceback
from loaderd.data.images.decode import decode
from loaderd.data.images.image_error import ImageError


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def test_an_exception_without_a_text_or_with_a_broken_one_still_makes_a_fault() -> None:
    assert SampleFault.of("read", ValueError()).message == "(no message)"
    fault = SampleFault.of("read", Mute())
    assert fault.error == "Mute"
    assert "RuntimeError" in fault.message


def test_long_messages_and_tracebacks_are_cut() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match=r"^x{100000}$") as caught:
        deep(900)
    fault = SampleFault.of("transform", caught.value)
    assert len(fault.message) <= MAX_MESSAGE
    assert "characters more" in fault.message
    assert len(fault.traceback) <= MAX_TRACEBACK + 10


def test_an_error_of_our_own_has_no_users_traceback() -> None:
    with pytest.raises(ImageError) as caught:
        decode(b"hello")
    trimmed = caught.value.with_traceback(
        caught.value.__traceback__.tb_next if caught.value.__traceback__ else None
    )
    assert user_traceback(trimmed) == ""


def test_a_fault_says_stage_error_and_message() -> None:
    assert str(SampleFault("decode", "ImageError", "damaged")) == "decode: ImageError: damaged"


def module(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import no_such_dependency",
            r"line 2: there is no module 'no_such_dependency': install it for .*python",
        ),
        (
            "import nunpy.linalg",
            r"line 2: there is no module 'nunpy': did you mean .*numpy.*\? Else install it",
        ),
        (
            "from json import dumbs",
            r"line 2: importing broken_user_module failed: ImportError: cannot import name 'dumbs'",
        ),
        ("1 / 0", "line 2: importing broken_user_module failed: ZeroDivisionError"),
        ("def f(:", r"broken_user_module\.py, line 2: SyntaxError: "),
        ("raise SystemExit(3)", "line 2: importing broken_user_module failed: SystemExit"),
    ],
)
def test_a_module_that_fails_while_it_is_imported_is_told_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    module(tmp_path, "broken_user_module", "# ours\n" + text, monkeypatch)
    with pytest.raises(SourceError, match=words) as caught:
        user_code.find("broken_user_module:X", "call")
    assert f"{tmp_path}/broken_user_module.py, line 2: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "broken_user_module.py" in caught.value.traceback
    assert text in caught.value.traceback
    assert "importlib" not in caught.value.traceback


def test_a_module_that_is_not_there_is_told_with_the_nearest_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_users_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "transforms.py").write_text(
        "def strong(sample, rng): return sample\nclass Weak: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, words in (
        (
            "some_user_package:X",
            rf"there is no module 'some_user_package' \(looked first in {tmp_path}, then along "
            r"PYTHONPATH\); did you mean some_users_package\?",
        ),
        (
            "some_users_package.transform:X",
            r"no module 'some_users_package\.transform' .*did you mean "
            r"some_users_package\.transforms\?",
        ),
        (
            "some_users_package.transforms.augment:X",
            r"some_users_package\.transforms is a file and not a package",
        ),
        ("some_users_package.transforms:stronk", r"has no 'stronk'; did you mean 'strong'\?"),
        ("some_users_package.transforms:quite_other", "has no 'quite_other'; it has Weak, strong$"),
    ):
        with pytest.raises(SourceError, match=words) as caught:
            user_code.find(name, "call")
        assert caught.value.traceback == ""


@pytest.mark.parametrize("started_in", [".", "configs"])
def test_a_module_that_is_beside_the_script_and_not_the_config_is_told_with_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started_in: str
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "module_of_script.py").touch()
    (tmp_path / "module_of_nobody").mkdir()  # no module: a folder without Python files
    monkeypatch.syspath_prepend(str(tmp_path / "configs"))
    monkeypatch.chdir(tmp_path / started_in)
    words = rf"; it is in {tmp_path}: set PYTHONPATH={tmp_path}, or move the config there$"
    with pytest.raises(SourceError, match=words):
        user_code.find("module_of_script.aug:X", "call")
    with pytest.raises(SourceError, match=r"; put it there, or its folder into PYTHONPATH$"):
        user_code.find("module_of_nobody:X", "call")


@pytest.mark.parametrize("name", ["json", "json.loads", ":loads", "json:", ":", ""])
def test_a_name_of_another_form_says_which_one_is_expected(name: str) -> None:
    with pytest.raises(SourceError) as caught:
        user_code.find(name, "collate")
    assert str(caught.value) == f'collate = "{name}": expected "package.module:Name"'


def test_a_name_inside_a_class_is_found() -> None:
    assert user_code.find("collections:OrderedDict.fromkeys", "call")("ab") == {
        "a": None,
        "b": None,
    }


def test_arguments_of_users_code_may_have_any_name() -> None:
    names = ("name", "what", "how", "function", "args", "options", "sample", "self_")
    built = user_code.build(
        "types:SimpleNamespace", "dataset", **{name: n for n, name in enumerate(names)}
    )
    assert vars(built) == {name: n for n, name in enumerate(names)}


def test_a_short_traceback_is_shown_whole_and_once() -> None:
    with pytest.raises(ValueError, match="of the user") as caught:
        raise ValueError("of the user")
    text = user_traceback(caught.value)
    assert (
        text.count("ValueError: of the user") == text.count('raise ValueError("of the user")') == 1
    )
    assert "\n...\n" not in text

"""What users read is plain: `python tests/messages/collect.py` prints all of it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest

from loaderd_testing.deadlines import DEADLINE_S
from messages import collect
from messages.collect import Message

# Words of the code's own that say nothing to a user, and pictures of speech. What is run in a
# process has a name from the field.
PRIVATE = (
    "affair", "anew", "blame", "boss", "broken off", "by now", "door", "draft", "gone on with", "guest", "hand", "hands",
    "house", "inquest", "lets it go on", "mold", "nobody", "nonsense", "obituary", "recipe", "rim", "ring", "seat", "shelf",
    "somebody", "story", "template", "treaty", "turned away", "verdict", "whoever", "without a word",
)  # fmt: skip
FAULT = "a fault of loaderd itself"
MOST_WORDS = 60
ERRORS = (
    "ConfigError",
    "CommandError",
    "CannotServe",
    "RefusedError",
    "StreamChangedError",
)  # which users cause, and can mend


@functools.cache
def messages() -> list[Message]:
    """All of them: where the first test asks, not where pytest only looks which tests there are."""
    return collect.collect()


def spoken(message: Message) -> str:
    """The text without what it inserts, and without code."""
    return re.sub(r"`[^`]*`|\{[^{}]*\}", " ", message.text)


def is_program(message: Message) -> bool:
    """A script that is run or shown, or a whole document, and no sentence."""
    lines = message.text.strip().splitlines()
    return any(line.startswith(("import ", "from ", "class ", "# ", ":root ")) for line in lines)


def test_there_are_texts_of_every_part() -> None:
    parts = {"/".join(message.file.split("/")[:2]) for message in messages()}
    assert parts >= {
        "loaderd/cli",
        "loaderd/server",
        "loaderd/core",
        "loaderd/data",
        "loaderd/engine",
        "loaderd/system",
        "client/loaderd_client",
    }
    assert len(messages()) > 1000


@pytest.mark.parametrize("word", PRIVATE)
def test_no_text_has_a_private_word(word: str) -> None:
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    assert [
        str(message)
        for message in messages()
        if not is_program(message) and pattern.search(spoken(message))
    ] == []


def test_no_text_is_long() -> None:
    assert [
        str(message)
        for message in messages()
        if not is_program(message) and len(message.text.split()) > MOST_WORDS
    ] == []


def test_a_fault_of_loaderd_is_claimed_in_one_place() -> None:
    assert {message.file for message in messages() if FAULT in message.text} == {
        "loaderd/cli/command_line.py"
    }


def test_no_text_shouts_or_apologises() -> None:
    pattern = re.compile(r"[A-Za-z]!(\s|$)|\b(sorry|please|oops)\b", re.IGNORECASE)
    assert [
        str(message)
        for message in messages()
        if not is_program(message) and pattern.search(spoken(message))
    ] == []


def test_an_error_says_what_is_there_and_what_to_do() -> None:
    """It has a value or a name of a setting in it; what follows a colon, a semicolon or a comma
    tells the way out.
    """
    errors = [message for message in messages() if message.error.split(".")[-1] in ERRORS]
    assert len(errors) > 80
    assert [
        str(message) for message in errors if not re.search(r"[{=`]|--\w|/\w", message.text)
    ] == []
    assert [str(message) for message in errors if not re.search(r"[:;,]|\{", message.text)] == []


def test_the_list_can_be_printed() -> None:
    command = [sys.executable, collect.__file__, "num_workers"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert re.search(
        r"^loaderd/system/resource_limits.py:\d+: num_workers = ", done.stdout, re.MULTILINE
    )

"""Text of others that is shown moves no cursor, begins no line, and is else as it was."""

from __future__ import annotations

import pytest

from loaderd_wire.plain_text import one_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a.jpg", "a.jpg"),
        ("Ärger\u3000猫 e\u0301 👨\u200d👩", "Ärger\u3000猫 e\u0301 👨\u200d👩"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("over\rwritten\x7f", "over\\rwritten\\x7f"),
        ("\x9b31m\x85\u2028", "\\x9b31m\\x85\\u2028"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("a\udcff", "a\\udcff"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_is_one_line_whatever_the_text_is() -> None:
    text = "".join(map(chr, range(0x3000))) + "\u2028\u2029"
    assert len(one_line(text).splitlines()) == 1
    assert one_line("a\nb") == "a\\nb"

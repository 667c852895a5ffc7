"""Where the native parts are missing, whoever installed loaderd is told, once a command, and what
that costs.
"""

from __future__ import annotations

import pytest

from loaderd_testing.cli_harness import Place

MISSING = "native parts missing: _crop, _jpeg, _rows"


def test_without_native_parts_version_check_serve_and_status_say_so(place: Place) -> None:
    env = {"PYTHONPATH": place.bare()}
    assert place.cli("--version", env=env).stdout.splitlines()[1] == MISSING
    config = place.config()
    warned = [
        line
        for line in place.cli("check", config, env=env).stderr.splitlines()
        if "native parts" in line
    ]
    assert len(warned) == 1
    for said in (
        "without _crop",
        "without _jpeg",
        "without _rows",
        "2.2 times as long",
        "Install a loaderd wheel, or a C compiler",
    ):
        assert said in warned[0], said
    place.serve(config, env=env)
    assert place.log(config).count("native parts are missing") == 1
    assert warned[0].removeprefix("loaderd: ") in place.log(config)
    assert MISSING in place.cli("status", config).stdout
    assert place.status(config)["native"] == {"_crop": False, "_jpeg": False, "_rows": False}


@pytest.mark.needs("extensions")
def test_with_native_parts_nobody_is_warned(place: Place) -> None:
    config = place.config()
    assert "native parts" not in place.cli("check", config).stderr
    place.serve(config)
    (told,) = [line for line in place.log(config).splitlines() if "native parts" in line]
    assert "native parts: _crop, _jpeg, _rows" in told
    assert " info " in told  # the banner: no warning
    assert "native parts: _crop, _jpeg, _rows" in place.cli("status", config).stdout
    assert place.status(config)["native"] == {"_crop": True, "_jpeg": True, "_rows": True}

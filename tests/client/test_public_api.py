"""What users import: the same names from `loaderd` and `loaderd_client`, and nothing is loaded
before it is asked for.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import loaderd
import loaderd_client
from loaderd_testing.deadlines import DEADLINE_S

PACKAGES = ("loaderd", "loaderd_client", "loaderd_wire")


def said(code: str) -> str:
    """What this code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", loaderd_client.__all__)
def test_loaderd_has_every_public_name_of_its_client(name: str) -> None:
    assert getattr(loaderd, name) is getattr(loaderd_client, name)
    assert name in dir(loaderd)
    assert name in loaderd.__all__


def test_importing_loaderd_imports_no_client_before_a_name_of_it_is_asked_for() -> None:
    loaded = (
        "print([m for m in ('loaderd_client', 'loaderd_wire', 'numpy', 'torch', 'zmq') if m "
        "in sys.modules])"
    )
    assert said(f"import sys, loaderd; dir(loaderd), loaderd.__version__; {loaded}") == "[]"
    assert (
        said(f"import sys; from loaderd import Loader; {loaded}")
        == "['loaderd_client', 'loaderd_wire', 'numpy', 'zmq']"
    )


def test_a_name_that_loaderd_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'loaderd' has no attribute 'Loadr'"):
        loaderd.Loadr  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'Loadr'"):
        exec("from loaderd import Loadr")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_tells_type_checkers_that_it_has_types(package: str) -> None:
    folder = importlib.import_module(package).__file__
    assert folder is not None
    assert (Path(folder).parent / "py.typed").is_file()

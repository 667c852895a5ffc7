"""Users' objects by name: "pkg.module:Name", imported and called with errors that say which and why."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from loaderd.data.faults import SampleFault, SourceError, user_traceback


def failure(error: BaseException) -> str:
    """What a user's code raised, on one line of bounded length."""
    text = " ".join(SampleFault.of("", error).message.split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + ' ...'}"


def find(name: str, what: str) -> Any:
    """The object called "pkg.module:Name". what: the setting that names it, for errors. Raises SourceError."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise SourceError(f'{what} = "{name}": expected "package.module:Name"')
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SourceError(f'{what} = "{name}": there is no module {error.name!r} (looked first in {sys.path[0] or "."})') from None
        raise SourceError(
            f'{what} = "{name}": {module_name} needs a module that is not there: {error.name}', user_traceback(error)
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        raise SourceError(f'{what} = "{name}": importing {module_name} failed: {failure(error)}', user_traceback(error)) from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise SourceError(f'{what} = "{name}": {module_name} has no {path!r}')
        found = getattr(found, part)
    if not callable(found):
        raise SourceError(f'{what} = "{name}": is a {type(found).__name__}, which cannot be called')
    return found


def build(name: str, what: str, *args: Any, **options: Any) -> Any:
    """The object that "pkg.module:Class" makes of these arguments. Raises SourceError with the user's traceback."""
    made = find(name, what)
    try:
        return made(*args, **options)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        shown = ", ".join(f"{key}={value!r:.60}" for key, value in options.items())
        raise SourceError(f'{what} = "{name}": {name}({shown}) failed: {failure(error)}', user_traceback(error)) from None


def count_of(thing: Any, name: str, what: str) -> int:
    """len() of a user's object. Raises SourceError if it has none, it fails, or is 0."""
    try:
        total = len(thing)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        hint = "" if hasattr(type(thing), "__len__") else "; only map-style datasets (with __len__ and __getitem__) can be served"
        raise SourceError(f'{what} = "{name}": len() failed: {failure(error)}{hint}', user_traceback(error)) from None
    if total < 1:
        raise SourceError(f'{what} = "{name}": it is empty (len() is 0)')
    return total

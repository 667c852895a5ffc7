"""Users' objects by name: "pkg.module:Name".

They are imported and called with errors that say which and why.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from loaderd.data.errors import SampleFault, SourceError, is_users, user_traceback
from loaderd_wire.hints import nearest

HOW = {
    "dataset": "Class(**dataset_args)",
    "layout": "Class(get, **layout_args)",
    "init": "function(worker_id)",
    "call": "Class(**args)",
}
ABOVE = 2  # folders above the config's that are looked into for a module that is not found
SHOWN = 8  # names that are listed where none is near


def failure(error: BaseException) -> str:
    """What a user's code raised, on one line of bounded length."""
    text = " ".join(SampleFault.of("", error).message.split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + ' ...'}"


def find(name: str, what: str) -> Any:
    """The object called "pkg.module:Name".

    Args:
        name: That.
        what: The setting that names it, for errors.

    Raises:
        SourceError: There is none.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise SourceError(f'{what} = "{name}": expected "package.module:Name"')
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and f"{module_name}.".startswith(f"{error.name}.")
        ):
            raise SourceError(f'{what} = "{name}": {_absent(error.name)}') from None
        raise SourceError(
            f'{what} = "{name}": {_unimportable(module_name, error)}', user_traceback(error)
        ) from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise SourceError(
                f'{what} = "{name}": {module_name} has no {path!r}{_near_name(part, found)}'
            )
        found = getattr(found, part)
    if not callable(found):
        raise SourceError(f'{what} = "{name}": is a {type(found).__name__}, which cannot be called')
    return found


def _absent(module: str) -> str:
    """What is to be said where the very module that a setting names is not there."""
    package, _, last = module.rpartition(".")
    parent = sys.modules.get(package)
    if package and parent is not None and not hasattr(parent, "__path__"):
        return f"there is no module {module!r}: {package} is a file and not a package"
    places = list(parent.__path__) if parent is not None else sys.path[:1]
    names = [found.name for found in pkgutil.iter_modules(places)]
    near = nearest(last, names)
    hint = f"; did you mean {package + '.' if package else ''}{near}?" if near else ""
    return (
        f"there is no module {module!r} (looked first in {sys.path[0] or '.'}, then along "
        f"PYTHONPATH){hint or ('' if package else _elsewhere(module))}"
    )


def _elsewhere(module: str) -> str:
    """What to do about a module that may be where the command was started, or above the config."""
    first = Path(sys.path[0] or ".").resolve()
    for place in map(str, (Path.cwd(), *first.parents[:ABOVE])):
        found = PathFinder.find_spec(module, [place])
        # a folder of Python files is a package, too, and any other folder is none
        if found is not None and (found.origin or any(Path(place, module).glob("*.py"))):
            return f"; it is in {place}: set PYTHONPATH={place}, or move the config there"
    return "; put it there, or its folder into PYTHONPATH"


def _unimportable(module: str, error: BaseException) -> str:
    """What a module raised while it was imported, where, and what to do."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)
    ]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else module
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        near = (
            difflib.get_close_matches(
                top, [found.name for found in pkgutil.iter_modules()], 2, 0.75
            )
            if top not in sys.modules
            else []
        )
        hint = f"did you mean {' or '.join(near)}? Else " if near else ""
        return (
            f"{where}: there is no module {error.name!r}: {hint}install it for "
            f"{sys.executable}, or put it in {sys.path[0] or 'this folder'}"
        )
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    return f"{where}: importing {module} failed: {failure(error)}"


def _near_name(name: str, found: Any) -> str:
    """What the user may have meant, or what there is."""
    names = [each for each in dir(found) if not each.startswith("_")]
    near = nearest(name, names)
    if near:
        return f"; did you mean {near!r}?"
    module = getattr(found, "__name__", None)
    own = [each for each in names if getattr(getattr(found, each), "__module__", None) == module]
    return f"; it has {', '.join(own[:SHOWN])}{', ...' if len(own) > SHOWN else ''}" if own else ""


def build(name: str, what: str, /, *args: Any, **options: Any) -> Any:
    """The object that "pkg.module:Class" makes of these arguments.

    Raises SourceError with the user's traceback.
    """
    made = find(name, what)
    try:
        return invoke(made, HOW[what], *args, **options)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        shown = ", ".join(f"{key}={value!r:.60}" for key, value in options.items())
        raise SourceError(
            f'{what} = "{name}": {name}({shown}) failed: {failure(error)}{_from_where(error)}',
            user_traceback(error),
        ) from None


def _from_where(error: BaseException) -> str:
    """ "" or, of a file that is not there and named by a relative path, the folder it begins at."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return ""
    if os.path.isabs(error.filename):
        return ""
    return (
        f"; a relative path of your own code begins at the daemon's folder, {os.getcwd()}: write "
        "the whole path"
    )


def invoke(function: Any, how: str, /, *args: Any, **options: Any) -> Any:
    """What the user's function returns, or raises.

    That it cannot be called so becomes a TypeError which says how it is called.
    """
    try:
        return function(*args, **options)
    except TypeError as error:
        inside = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if inside is not None:
            raise
        raise TypeError(f"{error}; it is called as {how}") from None


def takes(function: Any, name: str) -> bool:
    """Whether a callable has a parameter of this name that can be given by it."""
    return any(
        each.name == name and each.kind is not each.POSITIONAL_ONLY for each in parameters(function)
    )


def parameters(function: Any) -> list[inspect.Parameter]:
    """The parameters of a callable; none where it does not say them, as some builtins."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def count_of(thing: Any, name: str, what: str) -> int:
    """len() of a user's object. Raises SourceError if it has none, it fails, or is 0."""
    try:
        total = len(thing)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        hint = (
            ""
            if hasattr(type(thing), "__len__")
            else "; only map-style datasets (with __len__ and __getitem__) can be served"
        )
        raise SourceError(
            f'{what} = "{name}": len() failed: {failure(error)}{hint}', user_traceback(error)
        ) from None
    if total < 1:
        raise SourceError(f'{what} = "{name}": it is empty (len() is 0)')
    return total

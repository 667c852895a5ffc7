"""Reads the command line and hands over to the command's file. Errors become exit codes here."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from loaderd import __version__
from loaderd.cli.exit_codes import (
    BROKEN_OFF,
    EXTRA,
    FAULT,
    NO_START,
    USAGE,
    CommandError,
    missing,
)
from loaderd.cli.output import tell
from loaderd.cli.parser import parser
from loaderd_wire.errors import ConfigError
from loaderd_wire.plain_text import plain

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

MODULES = {
    name: f"{name}.command" for name in ("check", "bench", "preview", "top")
}  # of several files


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command line without the program's name. None: that of this process.

    Returns:
        The exit code.
    """
    _open_standard()
    args = parser(__version__).parse_args(argv)
    # of a process of our own, which a command may start over
    args.argv = sys.argv[1:] if argv is None else None
    try:
        code: int = importlib.import_module(
            f"loaderd.cli.{MODULES.get(args.command, args.command)}"
        ).run(args)
        sys.stdout.flush()  # here a full disk can still be told
        return code
    except (CommandError, ConfigError) as error:
        return _say(error, error.code if isinstance(error, CommandError) else USAGE, args.debug)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        return _say(missing(error.name), NO_START, args.debug)
    except BrokenPipeError:  # whoever read our output has seen enough
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return BROKEN_OFF
    except Exception as error:  # noqa: BLE001 - the top-level handler: nothing that gets here was foreseen
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            _drop_output()
            where = f"{error.filename}: " if error.filename else "the output: "
            return _say(
                CommandError(
                    f"{where}{error.strerror}: free some space, or write elsewhere", FAULT
                ),
                FAULT,
                args.debug,
            )
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return _say(
                CommandError(
                    f"{error.strerror}: raise the limit of file descriptors (ulimit -n)", NO_START
                ),
                NO_START,
                args.debug,
            )
        return _say(error, FAULT, args.debug)


def _open_standard() -> None:
    """Open what of the standard descriptors is closed, and let any name of a file be printed.

    Else the next file would be one of them, and what libraries print would go into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Keep the interpreter from flushing once more into what has failed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: Exception, code: int, debug: bool) -> int:
    if debug:
        sys.stderr.write(plain("".join(traceback.format_exception(error))))
    if isinstance(error, (CommandError, ConfigError)):
        tell(str(error))
    else:
        tell(f"{type(error).__name__}: {error}")
        tell("this is a fault of loaderd itself; --debug shows where")
    return code

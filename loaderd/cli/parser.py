"""The command line as argparse knows it.

Only the table of what `pack` takes is imported here, so that help, --version and mistakes cost
nothing.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from loaderd.data.packing.kinds import KINDS, that_take

LEAST_SHARD = 1 << 20
PAGE_AT_OUTPUT = "-o"  # --html without a name


class Parser(argparse.ArgumentParser):
    """A wrong command line is one or two lines and exit code 2."""

    def error(self, message: str) -> Any:
        """End with USAGE and one line that says what is wrong."""
        self.exit(2, f"loaderd: {message}\nloaderd: see: {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the version and which native parts this installation has."""

    def __init__(self, *args: Any, version: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._version = version

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from loaderd.data import native_library  # asks the dynamic linker

        print(f"loaderd {self._version}\n{native_library.described(native_library.present())}")
        parser.exit()


def _whole(low: int) -> Any:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {low} or more")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return value


def _quality(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


def _shard_bytes(text: str) -> int:
    from loaderd.config.types import Size  # only where it is asked for

    faults: list[str] = []
    size = Size().read(text, lambda _, fault: faults.append(fault))
    if not faults and size < LEAST_SHARD:
        faults.append(f"{text!r} is less than 1MiB")
    if faults:
        raise argparse.ArgumentTypeError(faults[0])
    return size


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name: write image,label")
    return names


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def parser(version: str) -> argparse.ArgumentParser:
    """The parser of all commands; `version` is what --version prints."""
    top = Parser(
        prog="loaderd",
        description="A data loading daemon for PyTorch: batches made outside the trainer.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        version=version,
        help="show the version and the native parts, and exit",
    )
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=text, description=text[:1].upper() + text[1:] + ".", allow_abbrev=False
        )
        made.add_argument("--debug", action="store_true", help="show tracebacks of loaderd itself")
        return made

    _serve(command("serve", "run the daemon in the foreground"))
    _check(
        command(
            "check",
            "read, decode and transform samples as the workers would, and name every bad one",
        )
    )
    _inspect(command("inspect", "show the layout, keys and fields of a database; needs no config"))
    _pack(
        command(
            "pack", "write a database from images, shards, tables, a dataset or another database"
        )
    )
    _preview(command("preview", "show one batch as a contact sheet"))
    _status(command("status", "show a running daemon"))
    _top(command("top", "follow a running daemon on a live page"))
    _bench(command("bench", "measure the loader without a model"))
    _drain(command("drain", "ask a running daemon to finish and exit; wait until it has"))
    command("schema", "print the JSON schema of the config, for editors")
    return top


def _serve(made: argparse.ArgumentParser) -> None:
    made.add_argument("config", metavar="CONFIG")
    made.add_argument("--log-format", choices=("text", "json"), default="text")
    made.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    made.add_argument(
        "--takeover",
        action="store_true",
        help="where a daemon serves this config already, start beside it and take its trainers "
        "over: an upgrade without a stop",
    )
    # instead of the config's; for `bench`
    made.add_argument("--socket", metavar="PATH", help=argparse.SUPPRESS)
    made.add_argument("--embedded", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--stream", default="", help=argparse.SUPPRESS)
    made.add_argument("--ready-fd", type=_whole(0), metavar="N", help=argparse.SUPPRESS)
    made.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)  # for `bench`


def _check(made: argparse.ArgumentParser) -> None:
    made.add_argument("config", metavar="CONFIG")
    made.add_argument("--stream", metavar="S", help="check this stream only")
    which = made.add_mutually_exclusive_group()
    which.add_argument(
        "--samples",
        type=_whole(1),
        metavar="N",
        help="number of samples to check in each stream, spread over the stream (default 256)",
    )
    which.add_argument(
        "--all",
        action="store_true",
        help="check every sample, with statistics, and every page of the database; after Ctrl-C "
        "the same command continues",
    )
    which.add_argument(
        "--index",
        type=_whole(0),
        metavar="I",
        help="check one sample in this process; breakpoint() works",
    )
    which.add_argument("--key", metavar="K", help="check one sample, by its key, in this process")
    made.add_argument(
        "--bad", metavar="FILE", help="write all bad samples to this file, as JSON lines"
    )
    made.add_argument(
        "--anew",
        action="store_true",
        help="with --all: start over instead of continuing an interrupted run",
    )


def _inspect(made: argparse.ArgumentParser) -> None:
    made.add_argument("db", metavar="DB", nargs="+", help="a path; of several a line each")
    made.add_argument("--json", action="store_true")


def _pack(made: argparse.ArgumentParser) -> None:
    made.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    sources = "; ".join(f"{name}: {kind.src}" for name, kind in KINDS.items())
    made.add_argument("src", nargs="+", metavar="SRC", help=sources)
    made.add_argument("db", metavar="DB", help="the database to write")
    names = made.add_mutually_exclusive_group()

    def option(name: str, text: str, to: Any = made, **how: Any) -> None:
        kinds = that_take(name.lstrip("-").replace("-", "_"))
        others = [kind for kind in KINDS if kind not in kinds]
        few = f"{', '.join(kinds)}: " if len(kinds) < len(others) else f"not {', '.join(others)}: "
        where = few if others else ""
        to.add_argument(name, help=f"{where}{text}", **how)

    option("--args", "words of this source alone", type=_json_object, default={}, metavar="JSON")
    option("--fields", "the fields that are packed", type=_names, default=(), metavar="A,B,...")
    option("--split", "the samples of this split, as a stream has it", metavar="LOW:HIGH")
    option("--shuffle", "store the samples in a random order", action="store_true")
    made.add_argument(
        "--seed", type=_whole(0), default=0, metavar="N", help="of that order (default 0)"
    )
    option(
        "--resize",
        "make images smaller whose shorter side has more pixels, as JPEG of --quality",
        type=_whole(1),
        default=0,
        metavar="PIXELS",
    )
    option(
        "--quality",
        "JPEG quality of images that are made smaller (default 90); without --resize of all images",
        type=_quality,
        default=0,
        metavar="1..100",
    )
    option(
        "--shard",
        "write databases of at most so many bytes: DB-00000, DB-00001, ...",
        type=_shard_bytes,
        default=0,
        metavar="8GiB",
    )
    option("--workers", "threads (default: one for each core)", type=_whole(1), default=0)
    option(
        "--classes-from", "use the class names and labels of another database", names, metavar="DB"
    )
    option(
        "--classes",
        "a file with the class names, one per line; the first is label 0",
        names,
        metavar="FILE",
    )
    option(
        "--random-access",
        "rewrite JPEGs without loss, so that a crop can be decoded alone (default: if this "
        "installation can)",
        action=argparse.BooleanOptionalAction,
    )


def _preview(made: argparse.ArgumentParser) -> None:
    made.add_argument("config", metavar="CONFIG")
    made.add_argument(
        "--stream", metavar="S", help="which stream; needed if the config has several"
    )
    made.add_argument("--epoch", type=_whole(0), default=0, metavar="E")
    place = made.add_mutually_exclusive_group()
    place.add_argument(
        "--step", type=_whole(0), metavar="N", help="step, counted from the start of the epoch"
    )
    place.add_argument(
        "--position",
        type=_whole(0),
        metavar="P",
        help="position in the epoch's order at which the step begins",
    )
    made.add_argument("--rank", type=_whole(0), default=0, metavar="R")
    made.add_argument("--world-size", type=_whole(1), default=1, metavar="W")
    made.add_argument(
        "--batch-size",
        type=_whole(1),
        metavar="B",
        help="if the trainer asks for another than the config's",
    )
    made.add_argument(
        "--seed",
        type=_whole(0),
        metavar="SEED",
        help="if the trainer asks for another than the config's",
    )
    made.add_argument("-o", "--output", metavar="OUT.png", help="write a contact sheet")
    made.add_argument(
        "--html",
        nargs="?",
        const=PAGE_AT_OUTPUT,
        metavar="OUT.html",
        help="write one page with all fields and what the transforms drew",
    )
    made.add_argument("--json", action="store_true", help="print the keys only, as JSON")


def _status(made: argparse.ArgumentParser) -> None:
    made.add_argument("target", nargs="?", metavar="SOCKET|CONFIG")
    made.add_argument("--json", action="store_true")
    made.add_argument(
        "--alive",
        action="store_true",
        help="exit with 0 also while the daemon starts, for liveness probes",
    )


def _top(made: argparse.ArgumentParser) -> None:
    made.add_argument("target", nargs="?", metavar="SOCKET|CONFIG")
    made.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="seconds between two looks (default 1)",
    )


def _bench(made: argparse.ArgumentParser) -> None:
    made.add_argument("config", metavar="CONFIG")
    made.add_argument(
        "--stream", metavar="S", help="which stream; needed if the config has several"
    )
    made.add_argument(
        "--against",
        choices=("dataloader",),
        help="also measure torch's DataLoader on the same stream, in turns",
    )
    made.add_argument(
        "--replay",
        action="store_true",
        help="serve the first batches again and again, to measure your own training script",
    )
    made.add_argument(
        "--seconds",
        type=_seconds,
        metavar="N",
        help="seconds per measurement (default 10; with --replay until the training script ends)",
    )
    made.add_argument(
        "--rounds",
        type=_whole(1),
        metavar="N",
        help="number of measurements; prints their medians (default 1; with --against 2 of each, "
        "in turns)",
    )
    made.add_argument("--json", action="store_true")


def _drain(made: argparse.ArgumentParser) -> None:
    made.add_argument("target", nargs="?", metavar="SOCKET|CONFIG")

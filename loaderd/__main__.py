"""`loaderd COMMAND ...`: see `cli/command_line.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The command line without the program's name. None: that of this process.

    Returns:
        The exit code.
    """
    try:
        from loaderd.cli.command_line import run  # Ctrl-C may come meanwhile

        return run(argv)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

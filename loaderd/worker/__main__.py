"""`python -m loaderd.worker fork-server|worker ...`: only the engine starts these."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from loaderd.worker.process_setup import flush_output


def main() -> NoReturn:
    """Run a worker or fork server; this process ends here.

    The interpreter would first wait for every thread that user code has started.
    """
    code = 1
    try:
        code = _run(*sys.argv[1:])
    except BaseException:  # noqa: BLE001 - the top-level handler of a process that must end here
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)


def _run(role: str, *rest: str) -> int:
    if role == "fork-server":
        from loaderd.worker.fork_server import main as serve

        return serve(list(rest))
    if role == "worker":
        from loaderd.worker.main import main as worker

        return worker(list(rest))
    if role == "proxy":
        try:
            from loaderd.worker.remote.proxy import main as proxy
        except Exception as error:  # noqa: BLE001 - whatever Ray, or what it needs, raises
            from loaderd.worker.remote.unavailable import main as unavailable

            unavailable(list(rest), error)
        return proxy(list(rest))
    print(f"loaderd.worker: unknown role {role!r}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()

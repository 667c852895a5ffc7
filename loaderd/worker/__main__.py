"""`python -m loaderd.worker template|worker ...`: only the pool starts these."""

from __future__ import annotations

import sys


def main() -> int:
    role, *rest = sys.argv[1:]
    if role == "template":
        from loaderd.worker.template import main as template

        return template(rest)
    if role == "worker":
        from loaderd.worker.main import main as worker

        return worker(rest)
    print(f"loaderd.worker: unknown role {role!r}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

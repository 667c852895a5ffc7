"""What Linux tells and does about processes."""

from __future__ import annotations

import subprocess
import sys

from loaderd_testing.deadlines import DEADLINE_S

NICED = """
import os, subprocess, sys
from pathlib import Path
from loaderd.system.processes import keep_niceness
os.nice(3)
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
    keep_niceness(child.pid)
    group = Path(f"/proc/{child.pid}/autogroup")
    # a kernel without groups has nothing to lose
    print(int(group.read_text().split()[-1]) == os.nice(0) if group.exists() else True)
    child.communicate(b"\\n")
"""


def test_a_session_begun_by_a_niced_process_is_no_less_nice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NICED],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.strip() == "True"

"""Copies of databases on a local disk, compared piece by piece where `check --all` asks for it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from loaderd.cli.exit_codes import FAULTS, FINE
from loaderd.cli.output import show
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.sources.part_paths import paths_of_stream
from loaderd.data.staging.copying import compared
from loaderd.data.staging.folder import StageFolder
from loaderd.system.progress import ProgressLine


def check(settings: Config, streams: Sequence[StreamConfig]) -> int:
    """Compare the copies that there are of the databases of these streams; the exit code."""
    stage = settings.daemon.staging
    if stage is None or not os.path.isdir(stage.folder):  # on a host of no daemon there are none
        return FINE
    code = FINE
    with ProgressLine("bytes of staged copies") as progress:
        try:
            folder = StageFolder(stage)
            plans = [each for plan in streams for each in plan.sources or (plan,)]
            for path in dict.fromkeys(path for each in plans for path in paths_of_stream(each)):
                found = compared(path, folder, lambda _, done, of: progress(done, of))
                if found is None:
                    continue
                if found.right:
                    show(f"fine: {found.copy}, the staged copy of {path}, is as it was written")
                    continue
                code = FAULTS
                show(
                    f"DAMAGED: {found.copy}, the staged copy of {path}: the next start of a daemon "
                    "copies its wrong pieces again. If no program wrote to it, look at the disk"
                )
        except SourceError as error:
            show(f"BAD: staged copies: {error}")
            code = FAULTS
    return code

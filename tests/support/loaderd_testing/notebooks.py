"""Notebooks with real kernels of Jupyter, which nbclient drives."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from loaderd_testing.deadlines import DEADLINE_S


class Shown(NamedTuple):
    """What stands below a cell that has run.

    Attributes:
        text: What it has printed, logged and displayed.
        error: Name and text of its error; "" if it has ended without.
    """

    text: str
    error: str


class _Client(NotebookClient):
    """Interrupts a cell once it has printed `interrupts_at`."""

    interrupts_at = ""

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if self.interrupts_at and self.interrupts_at in msg["content"].get("text", ""):
            self.interrupts_at = ""
            manager: Any = (
                self.km
            )  # as all of jupyter_client's, it has types that say less than it does
            self.interrupt = asyncio.ensure_future(manager.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


class Notebook:
    """A notebook in a folder with its kernel. A context manager that ends it."""

    def __init__(self, folder: Path, name: str = "kernel") -> None:
        self._loop = asyncio.new_event_loop()
        self._manager: Any = AsyncKernelManager(
            kernel_name="python3", transport="ipc", connection_file=str(folder / f"{name}.json")
        )
        self._client: Any = _Client(
            nbformat.v4.new_notebook(),
            km=self._manager,
            timeout=DEADLINE_S,
            startup_timeout=int(DEADLINE_S),
            iopub_timeout=int(DEADLINE_S),  # for what a cell has printed, once it has ended
        )
        env = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
        self._do(self._client.async_start_new_kernel(cwd=str(folder), env=env))
        self._do(self._client.async_start_new_kernel_client())

    @property
    def pid(self) -> int:
        return self._manager.provisioner.pid

    def run(self, code: str) -> Shown:
        """Run a new cell."""
        cell = nbformat.v4.new_code_cell(code)
        self._client.nb.cells.append(cell)
        error = ""
        try:
            self._do(self._client.async_execute_cell(cell, len(self._client.nb.cells) - 1))
        except CellExecutionError as raised:
            error = f"{raised.ename}: {raised.evalue}"
        texts = [
            one.get("text") or one.get("data", {}).get("text/plain", "") for one in cell.outputs
        ]
        return Shown("".join(texts), error)

    def interrupted(self, code: str, at: str) -> Shown:
        """Run a new cell, and interrupt it once it has printed this."""
        self._client.interrupts_at = at
        shown = self.run(code)
        assert not self._client.interrupts_at, shown
        return shown

    def restart(self) -> None:
        """As the button does."""
        self._do(self._manager.restart_kernel())
        self._do(self._client.kc.wait_for_ready(timeout=DEADLINE_S))

    def kill(self) -> None:
        """`kill -9` of the kernel."""
        os.kill(self.pid, signal.SIGKILL)
        self._do(self._manager.provisioner.wait())

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._client.kc.stop_channels()
            self._do(self._manager.shutdown_kernel(now=True))
            self._do(self._manager.cleanup_resources())
        finally:
            self._loop.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)

from __future__ import annotations

from faults.system.conftest import site, undisturbed

__all__ = ["site", "undisturbed"]

from __future__ import annotations

from system.conftest import site, undisturbed

__all__ = ["site", "undisturbed"]

"""torchvision beside a torch without CUDA: its transforms work, its compiled operators do not."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

_declared: Any = None  # torch forgets the operators with it


def declare_operators() -> None:
    """Once, before torchvision is imported: its operators exist by name where its own library of
    them, which is built for CUDA, cannot be loaded.
    """
    global _declared
    found = find_spec("torchvision")
    if found is None or _declared is not None:
        return
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    try:
        torch.ops.load_library(str(folder / "_C.so"))
    except OSError:
        pass
    else:
        return
    text = (folder / "_meta_registrations.py").read_text()
    names = re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', text)
    _declared = torch.library.Library("torchvision", "DEF")
    for name in sorted(set(names)):
        _declared.define(f"{name}(Tensor x) -> Tensor")

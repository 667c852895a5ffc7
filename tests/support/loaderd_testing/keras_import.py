"""Keras on torch, without what it imports where it is installed: that takes longer than Keras."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
left_out = [name for name in ("sklearn", "matplotlib", "pandas", "jax") if name not in sys.modules]
for name in left_out:  # an import of it is an ImportError, which Keras expects
    sys.modules[name] = None  # pyright: ignore[reportArgumentType] - as the import system has it
import keras  # noqa: E402, F401

for name in left_out:
    del sys.modules[name]

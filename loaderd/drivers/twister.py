"""The states of Python's and numpy's global generators, both Mersenne Twisters, written where they lie: 0.5 us instead of 10."""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np

WORDS = 624  # uint32
BYTES = 4 * WORDS
SPENT = WORDS  # the position at which a generator makes new numbers before it draws one; that of one just seeded


_singleton: Any = getattr(np.random.mtrand, "_rand", None)  # whose methods the functions of numpy.random are


class Twisters:
    """Sets the states of both. Where they lie is found out once, and tried: where that fails, or no longer holds, their own functions do
    the same, slowly. One for a process, or for one and its forks."""

    def __init__(self) -> None:
        self._python = _python_memory()
        self._numpy = _numpy_memory()
        self._bits: Any = None if self._numpy is None else _singleton._bit_generator
        self._seen = -1  # the first word that numpy's was set to

    def set(self, states: memoryview, number: int) -> None:
        """states: bytes, 2 * BYTES for each number: that of `random`, that of `numpy.random`. Nothing is left of a normal deviate that
        either has kept."""
        first = number * 2 * BYTES
        second = first + BYTES
        if self._python is None:
            random.setstate((3, (*states[first:second].cast("I"), SPENT), None))
        else:
            words, position, generator = self._python
            words[:] = states[first:second]
            position[0] = SPENT
            generator.gauss_next = None
        if self._numpy is None or _singleton._bit_generator is not self._bits:
            np.random.set_state(("MT19937", np.frombuffer(states[second : second + BYTES], np.uint32), SPENT, 0, 0.0))
            return
        words, numbers = self._numpy
        if numbers[WORDS] != SPENT or numbers[0] != self._seen:
            np.random.seed(0)  # it has drawn, and may keep the second of two normal deviates, which cannot be seen from here
        words[:] = states[second : second + BYTES]
        numbers[WORDS] = SPENT
        self._seen = numbers[0]


def _python_memory() -> tuple[memoryview, memoryview, Any] | None:
    """(the state's bytes, its position, the generator): found by their values in the generator's own memory."""
    generator: Any = getattr(random.seed, "__self__", None)
    if not isinstance(generator, random.Random):
        return None
    before = random.getstate()
    try:
        random.seed(5489)
        random.random()
        *state, position = random.getstate()[1]
        size = random.Random.__base__.__basicsize__  # type: ignore[union-attr] # it has a base: C's generator
        at = ctypes.string_at(id(generator), size).find(struct.pack(f"i{WORDS}I", position, *state))
        if at < 0:
            return None
        words = _memory(id(generator) + at + 4, BYTES)
        index = _memory(id(generator) + at, 4).cast("i")
        words[:] = bytes(range(256)) * 9 + bytes(BYTES - 9 * 256)
        index[0] = SPENT
        if random.getstate()[1] != (*words.cast("I"), SPENT):
            return None
        return words, index, generator
    except (AttributeError, TypeError, ValueError):
        return None
    finally:
        random.setstate(before)


def _numpy_memory() -> tuple[memoryview, memoryview] | None:
    """(the state's bytes, the same as words with the position behind them): where numpy says they are."""
    before = np.random.get_state()
    try:
        np.random.seed(5489)
        np.random.random()
        state = np.random.get_state(legacy=False)["state"]  # type: ignore[call-overload] # numpy's stubs know no such dict
        memory = _memory(_singleton._bit_generator.ctypes.state_address, BYTES + 4)
        if bytes(memory) != np.append(state["key"], state["pos"]).astype(np.uint32).tobytes():
            return None
        return memory[:BYTES], memory.cast("I")
    except (AttributeError, KeyError, TypeError, ValueError, ImportError):
        return None
    finally:
        np.random.set_state(before)


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")

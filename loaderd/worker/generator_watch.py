"""Whether user code uses the global generators of `random` and `numpy.random`.

It is found out through their public functions.

Code that draws moves a generator: a number that is drawn afterwards is not the one that was to
come. Code that only reads a generator's state, and puts it back after it has drawn, moves nothing:
so reading is noticed, too.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 0x10ADE12D  # of the state in which `arm` puts both generators
MORE = 256  # numbers to come that are worked out together

_numpy_random: Any = np.random  # whose stubs know no bit generator of it
_draw_python = random.getrandbits  # user code may put another function there
_draw_numpy = np.random.random_sample
_installed: GeneratorWatch | None = None


@dataclass(slots=True)
class GeneratorUse:
    """Which of the two generators somebody's code has been seen to use. Once true, always true."""

    python: bool = False
    numpy: bool = False


class WatchedRandom(random.Random):
    """The class of Python's global generator while it is watched."""

    __slots__ = ()

    @property
    def VERSION(self) -> int:  # type: ignore[override] # noqa: N802 - getstate asks for it, and nothing else does
        """That of random.Random; who asks for it reads the generator's state."""
        if _installed is not None:
            _installed.read.python = True
        return random.Random.VERSION

    def __reduce__(self) -> tuple[Any, ...]:
        return random.Random, (), self.getstate()  # a copy is not watched


class MT19937(np.random.MT19937):
    """numpy's global bit generator while it is watched.

    numpy writes a bit generator's name into its states, so it keeps its name.
    """

    @property
    def state(self) -> Any:
        """As numpy's; whoever reads it is noted."""
        if _installed is not None and self is _installed.bits:
            _installed.read.numpy = True
        return super().state

    @state.setter
    def state(self, value: Any) -> None:
        np.random.MT19937.state.__set__(self, value)


class GeneratorWatch:
    """Watches both generators. `install` makes the one of a process.

    Attributes:
        bits: numpy's.
        read: Which generator's state has been read since `arm`; whoever reads one without being
            user code takes that back.
    """

    def __init__(self, bits: MT19937) -> None:
        self.bits = bits
        self.read = GeneratorUse()
        self._python = random.Random(SEED)
        self._numpy = np.random.RandomState(SEED)
        self._python_start = self._python.getstate()
        # numpy takes a list in a tenth of the time of an array
        words: Any = self._numpy.get_state(legacy=False)["state"]["key"].tolist()
        self._numpy_start = ("MT19937", words, len(words), 0, 0.0)
        # where numpy says that its state lies: first its words
        self._address = bits.ctypes.state_address
        self._writes = True
        self._coming: list[tuple[int, float]] = []
        self._next = 0

    def arm(self, use: GeneratorUse) -> None:
        """Begin to watch the generators that `use` does not name yet.

        It names numpy's if user code has put another in its place.
        """
        self._next = 0
        self.read.python = self.read.numpy = False
        use.numpy = use.numpy or _numpy_random.get_bit_generator() is not self.bits
        if not use.python:
            random.setstate(self._python_start)
        if not use.numpy:
            np.random.set_state(self._numpy_start)

    def notices(self, use: GeneratorUse) -> bool:
        """Whether a generator that `use` does not name was used since `arm`; then it is named."""
        if self._next == len(self._coming):
            self._coming.extend(
                (self._python.getrandbits(64), number)
                for number in self._numpy.random_sample(MORE).tolist()
            )
        python, number = self._coming[self._next]
        self._next += 1
        python_used = not use.python and (_draw_python(64) != python or self.read.python)
        numpy_used = not use.numpy and (_draw_numpy() != number or self.read.numpy)
        if not (python_used or numpy_used):
            return False
        use.python |= python_used
        use.numpy |= numpy_used
        return True

    def set_numpy(self, words: bytes) -> bool:
        """Give numpy's generator a state of these words, as just seeded.

        That takes a tenth of the time of its set_state.

        Returns:
            False if it cannot be done.
        """
        if not self._writes or _numpy_random.get_bit_generator() is not self.bits:
            return False
        np.random.seed(0)  # nothing is left of a normal deviate that it has kept
        ctypes.memmove(self._address, words, len(words))
        return True

    def _works(self) -> bool:
        """Whether all of it holds in this Python, with this numpy."""
        nothing, reads = GeneratorUse(), (GeneratorUse(python=True), GeneratorUse(numpy=True))
        self.arm(nothing)
        if any(self.notices(nothing) for _ in range(3)):
            return False
        random.getstate()
        np.random.get_state()
        if self.read != GeneratorUse(True, True):
            return False
        for draw, found in zip((random.random, np.random.random), reads, strict=True):
            use = GeneratorUse()
            self.arm(use)
            draw()
            if not self.notices(use) or use != found:
                return False
        name, words, *rest = np.random.RandomState(1).get_state()
        self.set_numpy(words.tobytes())  # type: ignore[union-attr] # an array
        self._writes = repr(np.random.get_state()) == repr((name, words, *rest))
        return True


def installed() -> GeneratorWatch | None:
    """The watch of this process, if there is one."""
    return _installed


def install() -> None:
    """Watch from now on, in this process and its forks.

    To be called before user code is imported, which may keep numpy's bit generator.

    Where it cannot be done, nobody watches: then all samples are seeded.
    """
    global _installed
    generator: Any = random.seed.__self__  # a bound method, like all functions of `random`
    bits = _numpy_random.get_bit_generator()
    if (
        _installed is not None
        or type(generator) is not random.Random
        or type(bits) is not np.random.MT19937
    ):
        return
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    generator.__class__ = WatchedRandom
    own = MT19937()
    _numpy_random.set_bit_generator(own)
    _installed = GeneratorWatch(own)
    if not _installed._works():
        uninstall()
        _numpy_random.set_bit_generator(bits)
    random.setstate(python)
    np.random.set_state(numpy)


def uninstall() -> None:
    """Watch no longer. numpy keeps the bit generator, which is one like any other then."""
    global _installed
    random.seed.__self__.__class__ = random.Random
    _installed = None

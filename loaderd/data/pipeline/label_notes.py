"""What is to be said of stored label images that a stream turns into colours."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import ANYTHING
from loaderd.data.images.decode import label_mode
from loaderd.data.sources.source import Source


def label_notes(plan: StreamConfig, source: Source, indices: Sequence[int]) -> tuple[str, ...]:
    """Find fields whose stored images hold label numbers, and become colours unsaid.

    Args:
        plan: The stream.
        source: Its open source.
        indices: Samples to look at. One that cannot be read is left out.

    Returns:
        One line for each such field; none where the config says what the field is.
    """
    found: dict[str, str] = {}
    modes = plan.modes()
    if not plan.decode or source.dataset is not None:
        return ()
    for index in indices:
        try:
            sample = source.read(index)
            for name in sample.encoded - found.keys():
                unsaid = modes.of(name) not in ("index", "unchanged") and not modes.said(name)
                if unsaid and (mode := label_mode(sample[name], gray=modes.beside(name))):
                    found[name] = mode
        except ANYTHING:
            continue
    return tuple(
        f"field {name!r} has stored images of mode {mode}, whose numbers become colours; if "
        "they are labels, add "
        f'{{op = "decode", field = "{name}", mode = "index"}} to the transforms, or mode = '
        '"rgb" in it if they are not'
        for name, mode in found.items()
    )

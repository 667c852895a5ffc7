"""The picture of a bad sample, as it is stored."""

from __future__ import annotations

from loaderd.data.errors import SampleFault
from loaderd.data.sample import is_image_file
from loaderd.worker.streams import WorkerStream

PICTURE_BYTES = 64 << 10  # of a larger one nothing is sent along


def stored_picture(stream: WorkerStream, index: int, fault: SampleFault) -> bytes:
    """The stored bytes of a bad sample's image, for whoever wants to see what is wrong with it.

    Returns:
        b"" where reading it has failed or runs user code, and where there is no image, or too
        large a one.
    """
    if fault.stage == "read" or stream.source.user_code:
        return b""
    try:
        sample = stream.source.read(index)
        stored = [bytes(sample[name]) for name in sorted(sample.encoded)]
    except Exception:  # noqa: BLE001 - this is only to show a sample that is bad already
        return b""
    shown = (data for data in stored if len(data) <= PICTURE_BYTES and is_image_file(data))
    return next(shown, b"")

"""What CPUs of other hosts would bring, and what their rows cost on the wire."""

from __future__ import annotations

LINK_GBIT = 10.0  # of a usual link: what needs more is not sent as it is


def _cpus(count: int) -> str:
    return "1 borrowed CPU" if count == 1 else f"{count:,} borrowed CPUs"


def sends_text(workers: int, bytes_per_s: float) -> str:
    """What workers on other hosts send, as a part of a sentence.

    Args:
        workers: How many are at work.
        bytes_per_s: Bytes a second of their rows.
    """
    verb = "sends" if workers == 1 else "send"
    return f"{_cpus(workers)} {verb} {bytes_per_s * 8 / 1e9:.1f} Gbit/s"


def borrow_text(workers: int, rows_per_s: float, row_bytes: float) -> str:
    """Whether borrowed CPUs would help, as a part of a sentence.

    Args:
        workers: How many CPUs the host lacks, at least 1.
        rows_per_s: Rows a second that these would make and send.
        row_bytes: Bytes of a row.
    """
    cpus, gbit = _cpus(workers), rows_per_s * row_bytes * 8 / 1e9
    if gbit > LINK_GBIT:
        size = f"{row_bytes / 1e3:,.0f} KB a row"
        return (
            f"{cpus} ([workers.ray]) would put {gbit:,.0f} Gbit/s on the wire ({size}): send "
            "crops, not photos"
        )
    return f"{cpus} ([workers.ray]) would be enough, at {gbit:.1f} Gbit/s on the wire"

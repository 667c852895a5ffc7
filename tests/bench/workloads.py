"""The workloads of the table: what is loaded, by whom, for what kind of trainer."""

from __future__ import annotations

from dataclasses import dataclass

KEYS = 1_000_000  # names of samples in the memory workload


@dataclass(frozen=True, slots=True)
class Way:
    """A way to use loaderd.

    name: what sets it apart from the workload's others. data: how its data lies: "plain" or "tiles"
    as packed, "named"
    for a layout over names. keys: names that the dataset has. up: the daemon is ready before the
    clock starts.
    """

    name: str = ""
    data: str = "plain"
    keys: int = 0
    up: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """kind: of the corpus.

    figures: what is told, from `FIGURES`. ways: loaderd's, each beside the one DataLoader. out:
    what photos become.
    keys: names that the DataLoader's dataset holds. busy_s, pause_s: how long the trainer computes
    with a batch, or lets others compute.
    once: measured in the first round alone.
    """

    title: str
    kind: str
    batch_size: int
    figures: tuple[str, ...]
    ways: tuple[Way, ...] = (Way(),)
    out: str = "u8"
    workers: int = 2
    keys: int = 0
    busy_s: float = 0.0
    pause_s: float = 0.0
    once: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """text, and how it is told: its scale, its format, whether more is better.

    lacks: 0 says that there is none.
    """

    text: str
    scale: float = 1.0
    form: str = ".1f"
    more: bool = False
    lacks: bool = False


FIGURES = {
    "batches_s": Figure("batches/s", more=True),
    "samples_s": Figure("samples/s", form=",.0f", more=True),
    "cpu_s": Figure("the trainer's CPU a batch, every page of it read, ms", 1e3, ".2f"),
    "all_s": Figure("CPU of all processes a batch, ms", 1e3, ".2f"),
    "ready_p50_s": Figure("next() on a batch that is ready, p50, ms", 1e3, ".3f"),
    "faults": Figure("page faults a batch in the trainer", form=".2f"),
    "start_s": Figure("process start to first batch, s", form=".2f"),
    "turn_s": Figure("first batch of the second epoch, ms", 1e3, ".2f", lacks=True),
    "pss_mb": Figure("PSS of all processes at its most, MB", form=".0f"),
}

HANDOFF = ("batches_s", "cpu_s", "all_s", "ready_p50_s", "faults")
STORED = (Way("plain JPEG"), Way("random access", "tiles"))
START = (Way("nothing up", "tiles", up=False), Way("daemon up", "tiles"))
MANY = (
    Way("1,000,000 keys", "named", KEYS),
    Way("1,000 keys, DataLoader 1,000,000", "named", 1000),
)
WORKLOADS = (
    Workload("64 x 3 x 224 x 224 uint8, ready made", "u8", 64, HANDOFF),
    Workload("64 x 3 x 224 x 224 float32, ready made", "f32", 64, HANDOFF),
    Workload("256 rows of 1 KB", "tiny", 256, ("samples_s", "cpu_s", "all_s")),
    Workload("JPEG to a 224 crop, uint8", "photos", 64, ("samples_s", "all_s"), STORED),
    Workload(
        "JPEG to a 224 crop, float32, trainer busy 20 ms a batch",
        "photos",
        64,
        ("samples_s", "all_s"),
        STORED,
        "f32",
        busy_s=0.02,
    ),
    Workload(
        "JPEG, start, trainer takes 0.1 s a batch",
        "photos",
        64,
        ("start_s", "turn_s"),
        START,
        pause_s=0.1,
    ),
    Workload(
        "JPEG, memory, 4 workers", "photos", 64, ("pss_mb",), MANY, workers=4, keys=KEYS, once=True
    ),
)

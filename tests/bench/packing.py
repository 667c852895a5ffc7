"""What packing costs: of each kind of source with its bytes as they are, and what is done to images.

    python tests/bench/packing.py [--images 400] [--rounds 3]

CPU time of all threads, us an image, and images a second; the least of the rounds. Beside them what
nothing can go below: the bytes read and written by LMDB alone, and the encoder alone.
"""

from __future__ import annotations

import argparse
import csv
import io
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import lmdb
import pyarrow
import simplejpeg
from decode import photos
from meter import table, versions
from pyarrow import parquet

from loaderd.data.images.decode import decode
from loaderd.data.packing.inputs import PackOptions, pack_source
from loaderd.data.packing.kinds import opened
from loaderd.data.packing.source import SourceOptions

AS_IT_IS = PackOptions(verify=False, random_access=False)
WAYS = {
    "bytes as they are": AS_IT_IS,
    "decoded, to leave out bad ones": PackOptions(random_access=False),
    "rewritten for random access": PackOptions(),
    "--resize 256, rewritten": PackOptions(resize=256),
}


def sources(folder: Path, values: list[bytes]) -> dict[str, str]:
    """The images as a source of each kind: kind -> SRC."""
    (folder / "files" / "a").mkdir(parents=True)
    for at, value in enumerate(values):
        (folder / "files" / "a" / f"{at:05}.jpg").write_bytes(value)
    with tarfile.open(folder / "s.tar", "w") as file:
        for at, value in enumerate(values):
            for name, data in ((f"{at:05}.jpg", value), (f"{at:05}.cls", b"0")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    rows = {"image": [{"bytes": value, "path": ""} for value in values], "label": [0] * len(values)}
    parquet.write_table(pyarrow.table(rows), folder / "s.parquet", row_group_size=100)
    with (folder / "s.csv").open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(("image", "label"))
        writer.writerows((f"files/a/{at:05}.jpg", 0) for at in range(len(values)))
    names = {"webdataset": "s.tar", "parquet": "s.parquet", "csv": "s.csv", "imagefolder": "files"}
    return {kind: str(folder / name) for kind, name in names.items()}


def floor_of_disk(folder: Path, target: Path) -> None:
    """Files into a database, and nothing else."""
    with (
        lmdb.open(str(target), subdir=False, map_size=4 << 30, lock=False) as env,
        env.begin(write=True) as txn,
    ):
        for at, path in enumerate(sorted((folder / "files" / "a").iterdir())):
            txn.put(b"%08d" % at, path.read_bytes(), append=True)


def measured(work: Callable[[], object], count: int, rounds: int) -> list[str]:
    cpu_us, rate = [], []
    for _ in range(rounds):
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        work()
        cpu_us.append((time.process_time() - begin_cpu_s) / count * 1e6)
        rate.append(count / (time.perf_counter() - begin_s))
    return [f"{min(cpu_us):,.0f}", f"{max(rate):,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    values = list(photos(args.images, 375, 500))
    small = [cv2.resize(decode(value), (341, 256)) for value in values]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, number = Path(name), iter(range(10_000))
        found = sources(folder, values)

        def target() -> Path:
            return folder / f"{next(number)}.lmdb"

        def packed(kind: str, options: PackOptions) -> None:
            pack_source(opened(kind, found[kind], SourceOptions()), str(target()), options)

        def line(what: str, work: Callable[[], object]) -> None:
            rows.append([what, *measured(work, len(values), args.rounds)])

        line("files read and written by LMDB alone", lambda: floor_of_disk(folder, target()))
        for kind in found:
            line(f"{kind}, bytes as they are", lambda kind=kind: packed(kind, AS_IT_IS))
        for what, options in list(WAYS.items())[1:]:
            line(f"imagefolder, {what}", lambda options=options: packed("imagefolder", options))
        line(
            "341 x 256 encoded by libjpeg-turbo alone, quality 90",
            lambda: [simplejpeg.encode_jpeg(image, 90, "RGB", "420") for image in small],
        )
    print(versions())
    print(table(["", "CPU, us an image", "images/s"], rows))


if __name__ == "__main__":
    main()

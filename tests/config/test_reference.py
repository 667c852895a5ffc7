"""The config reference: made from the schema, complete, and its examples are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderd.config import load, reference, schema
from loaderd.config.table import Table

ROOT = Path(__file__).parents[2]
NEEDS = {
    "dataset_args": 'dataset = "mypkg.data:MyDataset"',
    "layout": 'lmdb = "a.lmdb"',
    "layout_args": 'lmdb = "a.lmdb"\nlayout = "layouts:Pairs"',
    "empty": 'lmdb = "a.lmdb"\non_error = "skip"',
    "ragged_as": 'lmdb = "a.lmdb"\nragged = ["boxes"]',
    "group": 'lmdb = "a.lmdb"\nsplit_by = "key"',
    "lmdb": "",
    "parts": "",
    "dataset": "",
    "of": "",
    "max_tokens": 'lmdb = "a.lmdb"\nbucket_by = "ids"',
    "stop": "of = {a = 1}",
}


def test_the_page_is_the_one_that_the_schema_makes() -> None:
    assert (ROOT / "loaderd" / "config" / "README.md").read_text() == reference.document()


@pytest.mark.parametrize(
    ("table", "header"),
    [
        (schema.DAEMON, "daemon"),
        (schema.WORKERS, "workers"),
        (schema.RAY, "workers.ray"),
        (schema.STREAM, "streams.train"),
    ],
)
def test_each_example_is_read_as_it_stands(table: Table, header: str, tmp_path: Path) -> None:
    for name in table.keys:
        needs = NEEDS.get(name, 'lmdb = "a.lmdb"')
        others = '[streams.a]\nlmdb = "a"\n[streams.b]\nlmdb = "b"\n'
        stream = "" if header == "streams.train" else '[streams.train]\nlmdb = "a.lmdb"\n'
        path = tmp_path / "config.toml"
        path.write_text(
            f"[{header}]\n{needs if not stream else ''}\n{name} = "
            f"{reference.EXAMPLES.get(f'{header[8:]}.{name}') or reference.EXAMPLES[name]}\n{stream}{others}"
        )
        load.load(str(path), {"XDG_RUNTIME_DIR": str(tmp_path)}, 1000)

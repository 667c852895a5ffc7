"""Text to a config: a ConfigError of bounded length that names a path, or a Config that can be read
again from its own plans.
"""

from __future__ import annotations

from harness import atheris, fuzz

with atheris.instrument_imports(
    include=[
        "tomllib",
        "loaderd.config.load",
        "loaderd.config.schema",
        "loaderd.config.types",
        "loaderd.config.stream",
        "loaderd_wire.paths",
    ]
):
    from loaderd.config.load import parse
    from loaderd.config.stream import StreamConfig
    from loaderd_wire.errors import ConfigError

WHOLE = """
[daemon]
socket = "/run/x/train.sock"
memory = "4GiB"
metrics = "127.0.0.1:9470"
allow_uids = [1000, "unmapped"]
drain_s = 10
[workers]
num_workers = "auto"
sample_timeout_s = 30.0
worker_memory = "4GiB"
init = "a.b:c"
[streams.train]
lmdb = "${DATA}/t.lmdb"
split = "0%:95%"
batch_size = 256
shuffle = {block = 4096}
max_errors = 0.5
on_error = "skip"
[[streams.train.transforms]]
op = "random_resized_crop"
size = 224
[[streams.train.transforms]]
call = "a.b:c"
args = {strength = 0.5}
"""


def target(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        config = parse(text, "/etc/c.toml", {"DATA": "/data", "HOME": "/h"}, 1000)
    except ConfigError as error:
        said = str(error)
    else:
        said = "/etc/c.toml"
        for plan in config.streams:
            assert StreamConfig.from_json(plan.to_json()) == plan
    assert len(said) < 100_000
    assert "/etc/c.toml" in said


if __name__ == "__main__":
    fuzz(
        target,
        [
            WHOLE.encode(),
            b'[streams.a]\nlmdb = "x"\n',
            b'[streams.a]\ndataset = "m:C"\ndataset_args = {a = [1, {b = 2}]}\n',
        ],
    )

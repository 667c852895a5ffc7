"""What a config may say, and how each thing that it may not say is reported."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loaderd.config.load import Config, load, parse
from loaderd.config.stream import StreamConfig
from loaderd.system.peer_credentials import PeerGate
from loaderd_wire.errors import ConfigError

ENV = {"HOME": "/home/ada", "DATA": "/data", "XDG_RUNTIME_DIR": "/run/user/7"}
STREAM = '[streams.train]\nlmdb = "train.lmdb"\n'


def read(text: str, env: dict[str, str] = ENV) -> Config:
    return parse(text, "/etc/loaderd/run.toml", env, 7)


def faults(text: str) -> list[str]:
    """The faults of a config, without the heading."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    lines = str(caught.value).split("\n")
    return (
        [lines[0].removeprefix("/etc/loaderd/run.toml: ")]
        if len(lines) == 1
        else [line.strip() for line in lines[1:]]
    )


def stream(line: str) -> list[str]:
    return faults(STREAM + line)


def test_the_least_config_has_every_default() -> None:
    config = read(STREAM)
    (train,) = config.streams
    assert train.lmdb == "/etc/loaderd/train.lmdb"
    assert (train.batch_size, train.shuffle, train.seed, train.drop_last) == (1, 0, 0, False)
    assert train.tail == "repeat"
    assert (train.on_error, train.max_errors, train.nonfinite, train.collate) == (
        "raise",
        0.0,
        "allow",
        "stack",
    )
    assert (train.layout, train.split, train.split_by, train.transforms) == (
        "auto",
        "0%:100%",
        "random",
        (),
    )
    assert config.workers.num_workers == "auto"
    assert config.workers.sample_timeout_s == 30.0
    assert config.workers.start_method == "forkserver"
    assert config.daemon.memory is None
    assert config.daemon.drain_s == 10.0
    assert config.daemon.exit_when_idle_s == 0.0
    assert config.daemon.socket.startswith("/run/user/7/loaderd/run-")
    assert config.daemon.quarantine == config.daemon.socket + ".bad.jsonl"
    assert config.default_socket


@pytest.mark.parametrize(
    ("given", "uids", "unmapped"),
    [
        ("[]", (), False),
        ("[1000]", (1000,), False),
        ('["unmapped"]', (), True),
        ('["unmapped", 7, 8]', (7, 8), True),
    ],
)
def test_who_else_may_attach_is_just_who_is_named(
    given: str, uids: tuple[int, ...], unmapped: bool
) -> None:
    gate = PeerGate.here(read(f"[daemon]\nallow_uids = {given}\n{STREAM}").daemon.allow_uids)
    assert (gate.allow_uids, gate.allow_unmapped) == (uids, unmapped)


def test_every_word_of_the_surface_is_read() -> None:
    config = read(
        """
        [daemon]
        socket = "/run/loaderd/train.sock"
        memory = "4GiB"
        metrics = "127.0.0.1:9470"
        allow_uids = [1000, "unmapped"]
        drain_s = 20
        exit_when_idle_s = 60.5
        quarantine = "bad.jsonl"
        [workers]
        num_workers = 3
        sample_timeout_s = 5
        worker_memory = "500MB"
        start_method = "spawn"
        init = "mypkg.setup:worker_init"
        [streams.train]
        lmdb = "${DATA}/train.lmdb"
        layout = "mine:Layout"
        layout_args = {root = "x"}
        split = "0%:95%"
        split_by = "stored"
        batch_size = 256
        shuffle = {block = 4096}
        seed = 3
        drop_last = true
        on_error = "replace"
        max_errors = 0.25
        nonfinite = "error"
        collate = "mypkg.c:pad"
        decode = false
        mode = "gray"
        [[streams.train.transforms]]
        op = "random_resized_crop"
        size = 224
        [[streams.train.transforms]]
        call = "mypkg.aug:train"
        args = {strength = 0.5}
        [streams.val]
        dataset = "mypkg.data:Val"
        dataset_args = {root = "/data"}
        """
    )
    assert config.daemon.memory == 4 << 30
    assert config.daemon.allow_uids == (1000, "unmapped")
    assert config.daemon.quarantine == "/etc/loaderd/bad.jsonl"
    assert not config.default_socket
    assert config.workers.num_workers == 3
    assert config.workers.worker_memory == 500_000_000
    train, val = config.streams
    assert (train.lmdb, train.shuffle, train.max_errors) == ("/data/train.lmdb", 4096, 0.25)
    assert [(step.op, step.call, step.args) for step in train.transforms] == [
        ("random_resized_crop", None, {"size": 224}),
        (None, "mypkg.aug:train", {"strength": 0.5}),
    ]
    assert (val.lmdb, val.dataset, val.dataset_args) == (None, "mypkg.data:Val", {"root": "/data"})


def test_all_faults_are_reported_at_once_each_with_path_and_value() -> None:
    found = faults(
        """
        [daemon]
        memroy = "4GiB"
        drain_s = -1
        [streams.train]
        lmdb = "${NOPE}/x"
        batch_size = 0
        [[streams.train.transforms]]
        op = "hflip"
        [[streams.train.transforms]]
        op = "random_crop"
        size = "big"
        """
    )
    assert found == [
        "daemon.memroy: \"4GiB\": unknown key; did you mean 'memory'?",
        "daemon.drain_s: -1 is not a number of seconds from 0",
        "streams.train.batch_size: 0 is not a whole number from 1 to 1048576",
        'streams.train.transforms[1].size: "big" is not a whole number or [height, width], from 1 '
        "to 65535",
        'streams.train.lmdb: "${NOPE}/x": environment variable NOPE is not set',
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shufle = true", "streams.train.shufle: true: unknown key; did you mean 'shuffle'?"),
        (
            'batch_size = "8"',
            'streams.train.batch_size: "8" is not a whole number from 1 to 1048576',
        ),
        (
            "batch_size = 8.0",
            "streams.train.batch_size: 8.0 is not a whole number from 1 to 1048576",
        ),
        (
            "batch_size = true",
            "streams.train.batch_size: true is not a whole number from 1 to 1048576",
        ),
        ("drop_last = 1", "streams.train.drop_last: 1 is not true or false"),
        (
            'on_error = "skp"',
            "streams.train.on_error: \"skp\" is not one of 'raise', 'skip', 'replace'; did you "
            "mean 'skip'?",
        ),
        (
            'empty = "deliver"',
            'streams.train.empty: "deliver": goes with on_error = "skip" or tail = "short", which '
            "are not set",
        ),
        (
            'tail = "short"\ndrop_last = true',
            'streams.train.tail: "short": contradicts drop_last = true; leave one of them out',
        ),
        (
            'tail = "drop"\ndrop_last = false',
            'streams.train.tail: "drop": contradicts drop_last = false; leave one of them out',
        ),
        (
            "shuffle = {block = 0}",
            "streams.train.shuffle: {'block': 0} is not true, false or {block = N}",
        ),
        (
            "max_errors = 0",
            "streams.train.max_errors: 0 is not a count of 1 or more, nor a fraction between 0 "
            "and 1",
        ),
        (
            "max_errors = 1.5",
            "streams.train.max_errors: 1.5 is not a count of 1 or more, nor a fraction between 0 "
            "and 1",
        ),
        (
            'split = "5:5"',
            'streams.train.split: "5:5": is empty: it ends where it begins, or before',
        ),
        ('split = "0%:101%"', 'streams.train.split: "0%:101%": ends beyond 100%'),
        (
            'split = "half"',
            'streams.train.split: "half" is not a part such as "0%:95%" or "0:50000"',
        ),
        (
            'layout = "a b"',
            'streams.train.layout: "a b" is not "auto", the name of a layout, or a class: '
            '"pkg.module:Class"',
        ),
        (
            'collate = "pad"',
            'streams.train.collate: "pad" is not "stack" or the name of a function: '
            '"pkg.module:name"',
        ),
        (
            "dataset_args = {a = 1}",
            "streams.train.dataset_args: {'a': 1}: goes with dataset, which is not set",
        ),
        (
            "layout_args = {a = 1}",
            "streams.train.layout_args: {'a': 1}: goes with layout = \"pkg.module:Class\"",
        ),
        ('dataset = "a:B"', "streams.train: has both lmdb and dataset: leave one out"),
        ("transforms = 3", "streams.train.transforms: 3 is not an array"),
        (
            "transforms = [3]",
            "streams.train.transforms[0]: 3 is not a table: write {op = ...}, or "
            "[[streams.X.transforms]] and op = ... below it",
        ),
        (
            "transforms = [{}]",
            "streams.train.transforms[0]: needs either op (a built-in) or call (a function of "
            "yours)",
        ),
        (
            'transforms = [{op = "hflp"}]',
            "streams.train.transforms[0].op: \"hflp\" is not a built-in; did you mean 'hflip'?",
        ),
        (
            'transforms = [{op = "mine:f"}]',
            'streams.train.transforms[0].op: "mine:f" is not a built-in; a function of yours is '
            'call = "mine:f"',
        ),
        (
            'transforms = [{op = "hflip", p = 2}]',
            "streams.train.transforms[0].p: 2 is not a number from 0 to 1",
        ),
        (
            'transforms = [{op = "random_crop", size = 4, field = "image"}, {op = "random_crop", '
            'size = 4, field = "mask"}]',
            "streams.train.transforms[1].field: random_crop draws separately for each field, so "
            "'image' and 'mask' would no longer match: use one "
            'random_crop with fields = ["image", "mask"]; if they need not match, give each op '
            'its own fields = ["..."]',
        ),
        (
            'transforms = [{op = "hflip"}, {op = "to_float"}, {op = "hflip", field = "mask"}]',
            "streams.train.transforms[2].field: hflip draws separately for each field, so 'image' "
            "and 'mask' would no longer match: use one hflip with "
            'fields = ["image", "mask"]; if they need not match, give each op its own fields = '
            '["..."]',
        ),
        (
            'transforms = [{op = "hflip", fields = ["image", "mask"]}, {op = "hflip", field = '
            '"image"}]',
            "streams.train.transforms[1].field: hflip draws separately for each field, so 'image' "
            "and 'mask' would no longer match: use one hflip with "
            'fields = ["image", "mask"]; if they need not match, give each op its own fields = '
            '["..."]',
        ),
        (
            'transforms = [{op = "hflip", field = "image"}, {op = "hflip", fields = ["mask"]}]',
            "streams.train.transforms[1].fields: hflip draws separately for each field, so "
            "'image' and 'mask' would no longer match: use one hflip with "
            'fields = ["image", "mask"]; if they need not match, give each op its own fields = '
            '["..."]',
        ),
        (
            'transforms = [{op = "hflip", field = "a", fields = ["a", "b"]}]',
            "streams.train.transforms[0].fields: ['a', 'b'] is not left out where field is set",
        ),
        (
            'transforms = [{op = "hflip", q = 2}]',
            "streams.train.transforms[0].q: 2: hflip has no such parameter; it has p, field, "
            "fields, boxes, keypoints, polygons, follow",
        ),
        (
            'transforms = [{op = "resize"}]',
            "streams.train.transforms[0].size: is missing: resize takes a whole number or "
            "[height, width], from 1 to 65535",
        ),
        (
            'transforms = [{call = "f"}]',
            'streams.train.transforms[0].call: "f" is not the name of a function: '
            '"pkg.module:name"',
        ),
        (
            'transforms = [{call = "m:f", args = {d = [{when = 2020-01-01}]}}]',
            "streams.train.transforms[0].args.d[0].when: 2020-01-01 is a date or time, which "
            "arguments cannot be: write it as text",
        ),
        ("[[workers]]", "workers: [{}] is not a table"),
        (
            '[workers]\nnum_workers = "all"',
            'workers.num_workers: "all" is not "auto" or a whole number from 1 to 1024',
        ),
        (
            "[workers]\nsample_timeout_s = 0",
            "workers.sample_timeout_s: 0 is not a number of seconds above 0",
        ),
        (
            "[workers]\nsample_timeout_s = nan",
            "workers.sample_timeout_s: nan is not a number of seconds above 0",
        ),
        (
            '[workers]\nengine = "ray"',
            'workers.engine: "ray": unknown key; there are num_workers, reset_affinity, '
            "sample_timeout_s, worker_memory, start_method, init, ray",
        ),
        (
            '[daemon]\nmemory = "4 gigs"',
            'daemon.memory: "4 gigs" is not a size: a whole number of bytes above 0, or text such '
            'as "64MiB" or "64MB"',
        ),
        ('[daemon]\nmetrics = "9470"', 'daemon.metrics: "9470" is not "host:port"'),
        ('[daemon]\nmetrics = "a:70000"', 'daemon.metrics: "a:70000": a port is from 1 to 65535'),
        (
            '[workers.ray]\naddress = "ray://a:70000"',
            'workers.ray.address: "ray://a:70000": a port is from 1 to 65535',
        ),
        ("[daemon]\nallow_uids = [-1]", 'daemon.allow_uids[0]: -1 is not a uid, or "unmapped"'),
        ('[daemon]\nsocket = ""', 'daemon.socket: "" is not a path'),
        (
            '[daemon]\nsocket = "~bob/x"',
            'daemon.socket: "~bob/x": only ~ and ~/ stand for a home folder, not ~user',
        ),
        (
            '[daemon]\nquarantine = "${A B}"',
            'daemon.quarantine: "${A B}": ${A B} is not the name of an environment variable',
        ),
        (
            '[streams."a b"]\nlmdb = "x"',
            "streams.\"a b\": is not a stream's name: letters, digits, '_', '-' and '.', at most "
            "64",
        ),
        ("[streams.val]", 'streams.val: needs lmdb = "path" or dataset = "pkg.module:Class"'),
        ("[strems.val]", "strems: {'val': {}}: unknown key; did you mean 'streams'?"),
    ],
)
def test_one_fault_is_one_line_that_names_path_and_value(line: str, expected: str) -> None:
    assert stream(line) == [expected]


def test_a_config_without_streams_says_what_to_add() -> None:
    assert faults("") == ["streams: is missing: what is served: [streams.NAME] tables"]
    assert faults("[streams]") == [
        'streams: is empty: add [streams.train] with lmdb = "path" or dataset = "pkg.module:Class"'
    ]


def test_a_socket_path_that_no_unix_socket_can_have_is_refused() -> None:
    (line,) = stream(f'[daemon]\nsocket = "/{"x" * 120}"')
    assert line.startswith("daemon.socket: socket path '/xxx")
    assert "107" in line


def test_a_default_socket_that_would_be_too_long_lies_below_tmp() -> None:
    config = read(STREAM, {"XDG_RUNTIME_DIR": "/run/" + "x" * 100})
    assert config.default_socket
    assert config.daemon.socket.startswith("/tmp/loaderd-")


def test_copies_on_a_local_disk_are_a_matter_of_the_daemon_that_streams_know() -> None:
    text = """[daemon]\nstage = "${DISK}/nvme"\nstage_limit = "500GB"\nstage_days = 2\n"""
    config = read(text + STREAM, {"DISK": "/local"})
    assert config.streams[0].stage is None, "check would copy it"
    (stage,) = {stream.stage for stream in config.staged().streams}
    assert stage == config.daemon.staging
    assert stage is not None
    assert (stage.folder, stage.limit, stage.keep_s) == ("/local/nvme", 500 * 10**9, 172_800)
    other = read(text + 'socket = "/run/o.sock"\n' + STREAM, {"DISK": "/local"}).daemon.staging
    assert other is not None
    assert other.user != stage.user
    assert read(STREAM).daemon.staging is None


def test_a_number_of_days_is_one() -> None:
    (line,) = stream('[daemon]\nstage_days = "week"')
    assert line == 'daemon.stage_days: "week" is not a number of days from 0'


def test_a_socket_path_that_is_too_long_says_what_to_set() -> None:
    (line,) = stream(f'[daemon]\nsocket = "/{"x" * 120}"')
    assert "set [daemon] socket to a shorter path, or leave it out" in line


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("64MB", 64_000_000),
        ("1.5GiB", 3 << 29),
        ("10 kB", None),
        ("10KB", 10_000),
        ("0", None),
        ("12", 12),
        ("7B", 7),
        ("", None),
    ],
)
def test_sizes_with_units(text: str, size: int | None) -> None:
    config = STREAM + f'[daemon]\nmemory = "{text}"'
    if size is None:
        assert faults(config)[0].startswith("daemon.memory: ")
    else:
        assert read(config).daemon.memory == size


def test_paths_take_the_home_folder_and_stand_beside_the_file() -> None:
    config = read(STREAM + '[daemon]\nsocket = "~/d.sock"\nquarantine = "../bad"')
    assert config.daemon.socket == "/home/ada/d.sock"
    assert config.daemon.quarantine == "/etc/bad"


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a = \n", 1, "not TOML"),
        ("[streams.a]\nx = 'b\n", 2, "not TOML"),
        ("[a]\n[a]\n", 2, "not TOML"),
        ("[streams.a]\nlmdb = '''\n\n", 3, "not TOML"),
    ],
)
def test_broken_toml_names_file_and_line(text: str, line: int, word: str) -> None:
    with pytest.raises(ConfigError, match=rf"^/etc/loaderd/run.toml:{line}: {word}"):
        read(text)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("True", "True is Python: write true"),
        ("False", "False is Python: write false"),
        ("{a = None}", "None is Python: leave the key out"),
        ("[1, None]", "None is Python: leave the key out"),
    ],
)
def test_a_word_of_python_as_a_value_is_told_with_what_to_write(value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf":2: not TOML: .*; {told}$"):
        read(f"[streams.a]\nx = {value}\n")


@pytest.mark.parametrize("path", ["train.lmdb", "../data/train.lmdb", "${DATA}/a-b.lmdb  # mine"])
def test_a_text_without_quotes_is_told_with_them(path: str) -> None:
    with pytest.raises(
        ConfigError, match=r"run\.toml:2: not TOML: .*; a text has quotes: "
    ) as caught:
        read(f"[streams.train]\nlmdb = {path}\n")
    assert str(caught.value).endswith(f'"{path.split()[0]}"')


def test_transforms_in_a_list_and_in_tables_are_told_to_be_written_in_one_way() -> None:
    text = '[streams.a]\nlmdb = "x"\ntransforms = [{op = "hflip"}]\n[[streams.a.transforms]]\nop = "vflip"\n'
    with pytest.raises(
        ConfigError, match=r":4: .*transforms = \[\.\.\.\] is there already: write all in"
    ):
        read(text)


def test_a_dot_where_the_colon_belongs_gets_the_name_that_was_meant() -> None:
    (found,) = faults('[streams.a]\ndataset = "pkg.data.Photos"')
    assert found.endswith('"pkg.module:name"; did you mean "pkg.data:Photos"?')


def test_more_faults_than_fit_a_screen_are_counted() -> None:
    found = faults(STREAM + "".join(f"x{n} = 1\n" for n in range(60)))
    assert len(found) == 51
    assert found[-1] == "and 10 more"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(str(path), ENV, 7)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == f"{tmp_path}/none.toml: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: is a folder; name a config file (TOML)"
    (tmp_path / "latin.toml").write_bytes(b"# fine\n# caf\xe9\n")
    assert refusal(tmp_path / "latin.toml") == f"{tmp_path}/latin.toml:2: not UTF-8: byte 0xe9"
    (tmp_path / "a.lmdb").write_bytes(bytes(16) + b"\xde\xc0\xef\xbe" + bytes(4 << 20))
    assert refusal(tmp_path / "a.lmdb") == (
        f"{tmp_path}/a.lmdb: is an LMDB and not a config file; name it in one: [streams.NAME] "
        f"lmdb = ..., or look at it: loaderd inspect {tmp_path}/a.lmdb"
    )
    os.mkfifo(tmp_path / "pipe.toml")
    assert (
        refusal(tmp_path / "pipe.toml")
        == f"{tmp_path}/pipe.toml: not a regular file; name a config file (TOML)"
    )
    (tmp_path / "big.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    assert "is that a config file?" in refusal(tmp_path / "big.toml")
    assert refusal(Path("a\0b")).startswith("'a\\x00b' is not a file's name")


def test_a_file_and_a_link_to_it_are_the_same_config(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.toml").write_text(STREAM)
    (tmp_path / "link.toml").symlink_to("real/a.toml")
    assert load(str(tmp_path / "link.toml"), ENV, 7) == load(
        str(tmp_path / "real" / "a.toml"), ENV, 7
    )


def error_of(text: str) -> str:
    """ "" for a good config, whose plans survive their journey to the workers."""
    try:
        plans = read(text).streams
    except ConfigError as error:
        return str(error)
    assert plans
    assert [StreamConfig.from_json(plan.to_json()) for plan in plans] == list(plans)
    return ""


WORDS = st.sampled_from(
    [
        "daemon",
        "workers",
        "streams",
        "train",
        "socket",
        "memory",
        "lmdb",
        "dataset",
        "transforms",
        "op",
        "call",
        "args",
        "size",
        "hflip",
        "shuffle",
        "block",
        "=",
        ".",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ",",
        '"',
        "'",
        "\n",
        "#",
        "\\",
        "${",
        "}",
        "${DATA}",
        "~",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "true",
        "1979-05-27",
        "0x",
        "1_000",
        "64MiB",
        "a:b",
        "\\u0000",
        "é",
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.text(string.printable),
        st.lists(WORDS, max_size=40).map(" ".join),
        st.lists(WORDS, max_size=40).map("".join),
    )
)
@example("a = " + "[" * 5000)
@example("a = " + "9" * 5000)
@example("[streams.a]\nlmdb = '\x7f'")
@example('[streams.a]\nlmdb = "\\u0000"')
@example("streams.a.lmdb = 'x'\nstreams.a.seed = 0x7fffffffffffffff")
def test_whatever_is_written_there_is_a_config_or_a_config_error(text: str) -> None:
    assert error_of(text).split(":")[0] in ("", "/etc/loaderd/run.toml")


JSONISH = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["x", "a:b", "0%:5%", "64MiB", "raise"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KNOWN = st.sampled_from(
    [
        "lmdb",
        "dataset",
        "dataset_args",
        "layout",
        "split",
        "batch_size",
        "shuffle",
        "max_errors",
        "transforms",
        "collate",
        "weights",
    ]
)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(name)} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return (
            '"'
            + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in value)
            + '"'
        )
    return repr(value)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KNOWN, JSONISH, max_size=4))
def test_whatever_a_stream_is_made_of_is_a_config_or_a_config_error(
    stream: dict[str, object],
) -> None:
    text = "[streams.s]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in stream.items())
    assert error_of(text).split(":")[0] in ("", "/etc/loaderd/run.toml")


def test_random_ops_of_fields_that_need_not_match_are_allowed_where_each_names_its_own() -> None:
    line = (
        'transforms = [{op = "hflip", fields = ["a"]}, {op = "hflip", fields = ["b"]}, {op = '
        '"random_crop", size = 3, fields = ["a", "b"]}]'
    )
    (train,) = read(STREAM + line).streams
    assert train.transforms[2].args["fields"] == ["a", "b"]
    read(
        STREAM
        + (
            'transforms = [{op = "hflip", field = "a"}, {op = "hflip", field = "a"}, {op = '
            '"resize", size = 3, field = "b"}]'
        )
    )


def test_words_that_describe_a_foreign_database_are_read_and_its_index_file_is_a_path() -> None:
    config = parse(
        """
        [streams.train]
        lmdb = "a.lmdb"
        layout = "raw"
        index_file = "${DATA}/keys.txt"
        key_format = {rgb = "rgb_{i:04d}"}
        dtype = {rgb = "uint8"}
        shape = {rgb = [4, 6, 3]}
        fields = ["rgb"]
        allow_pickle = true
        """,
        "/etc/loaderd/a.toml",
        {"DATA": "/data", "XDG_RUNTIME_DIR": "/run/user/0"},
        0,
    )
    (train,) = config.streams
    assert train.index_file == "/data/keys.txt"
    assert (train.key_format, train.dtype) == ({"rgb": "rgb_{i:04d}"}, {"rgb": "uint8"})
    assert (train.fields, train.allow_pickle) == (("rgb",), True)
    again = StreamConfig.from_json(train.to_json())
    assert again.fields == train.fields
    assert {name: tuple(size) for name, size in again.shape.items()} == {"rgb": (4, 6, 3)}  # type: ignore[union-attr]

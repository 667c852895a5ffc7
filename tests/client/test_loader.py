from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import socket
import subprocess
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaderd_client import ConfigError, DaemonGoneError, Loader, LoaderdError
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.fake_daemon import (
    PICTURE,
    FakeDaemon,
    X,
    Y,
    checked,
    epoch_indices,
    seen,
    until,
)
from loaderd_testing.pipes import line_of
from loaderd_testing.python_processes import TORCH, TRAINING, python

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]
ROOT = Path(__file__).parents[2]


def trainer(
    code: str, *, imports: tuple[str, ...] = TRAINING, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    head = (
        f"import sys\nsys.path[:0] = [{str(ROOT / 'tests' / 'support')!r}]\nfrom "
        "loaderd_testing.fake_daemon import checked, seen\nfrom loaderd_client import Loader\n"
    )
    return python(
        "-c",
        head + textwrap.dedent(code),
        imports=imports,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()


# Epochs


def test_construction_connects_to_nothing(fake: Fake, load: Load) -> None:
    daemon = fake()
    loader = load()
    iter(loader)
    loader.set_epoch(3)
    assert loader.epoch == 3
    assert daemon.hellos == []
    assert len(loader) == 13
    assert len(daemon.hellos) == 1


def test_each_pass_is_the_next_epoch(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    for epoch in range(4):
        assert loader.epoch == epoch
        assert seen(loader) == epoch_indices(epoch, daemon.rules)


def test_steps_and_epochs_are_told_by_the_batch(fake: Fake, load: Load) -> None:
    fake()
    loader = load()
    for epoch in range(2):
        assert [(b.epoch, b.step, b.rows) for b in loader] == [
            (epoch, s, 4 if s < 12 else 2) for s in range(13)
        ]


def test_a_break_is_followed_by_the_next_epoch(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    for batch in loader:
        if batch.step == 3:
            break
    assert seen(loader) == epoch_indices(1, daemon.rules)


def test_set_epoch_before_and_after_iter_and_on_the_sampler(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    loader.set_epoch(5)
    assert seen(loader) == epoch_indices(5, daemon.rules)
    batches = iter(loader)
    loader.sampler.set_epoch(2)
    assert seen(batches) == epoch_indices(2, daemon.rules)
    assert seen(loader) == epoch_indices(3, daemon.rules)
    loader.set_epoch(0)
    assert seen(loader) == epoch_indices(0, daemon.rules)


def test_a_second_iterator_ends_the_first(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert list(first) == []
    assert seen(second) == epoch_indices(1, daemon.rules)
    assert list(second) == []


def test_a_used_up_iterator_stays_used_up(fake: Fake, load: Load) -> None:
    fake()
    batches = iter(load())
    seen(batches)
    assert list(batches) == []


@pytest.mark.parametrize("epoch", [-1, True, "3", 1.0])
def test_an_epoch_that_cannot_be_is_refused(load: Load, epoch: Any) -> None:
    with pytest.raises(ConfigError, match=r"set_epoch\(.*\): use a whole number"):
        load().set_epoch(epoch)


def test_the_call_order_of_lightning_gives_the_right_batches(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    state: dict[str, Any] = {}
    for epoch in range(2):
        batches = iter(loader)
        loader.sampler.set_epoch(epoch)
        # it stops by len() and never sees StopIteration
        got = [next(batches) for _ in range(len(loader))]
        state = json.loads(json.dumps(loader.state_dict()))
        iter(loader)  # after a checkpoint at the end of an epoch it asks twice
        assert seen(got) == epoch_indices(epoch, daemon.rules)
    assert (state["epoch"], state["position"]) == (1, 50)
    resumed = load()
    assert len(resumed) == 13  # it looks at the length before it loads a state
    resumed.load_state_dict(state)
    batches = iter(resumed)
    resumed.sampler.set_epoch(2)
    assert seen(next(batches) for _ in range(len(resumed))) == epoch_indices(2, daemon.rules)


def test_four_ranks_share_an_epoch_out(fake: Fake, load: Load) -> None:
    fake()
    ranks = [load(rank=r, world_size=4, batch_size=5) for r in range(4)]
    taken = [seen(loader) for loader in ranks]
    assert sorted(i for t in taken for i in t) == list(range(50))
    assert {len(loader) for loader in ranks} == {3}


# State


def test_resume_at_every_step_twice_and_in_the_second_epoch(fake: Fake, load: Load) -> None:
    daemon = fake()
    for epoch in range(2):
        whole = epoch_indices(epoch, daemon.rules)
        for step in range(14):
            first = load()
            first.set_epoch(epoch)
            batches = iter(first)
            head = seen(next(batches) for _ in range(step))
            state = json.loads(json.dumps(batches.state_dict()))
            second = load()
            second.load_state_dict(state)
            again = iter(second)
            middle = seen(next(again) for _ in range(min(1, 13 - step)))
            state = json.loads(json.dumps(second.state_dict()))
            third = load()
            third.load_state_dict(state)
            third.load_state_dict(state)
            rest = list(third)
            assert head + middle + seen(rest) == whole
            assert [b.step for b in rest] == list(range(min(step + 1, 13), 13))
            assert len(third) == 13
            for loader in (first, second, third):
                loader.close()


def test_the_state_behind_the_last_batch_and_behind_the_end(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    batches = iter(loader)
    for _ in range(13):
        next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["position"], state["step"]) == (0, 50, 13)
    with pytest.raises(StopIteration):
        next(batches)
    after = loader.state_dict()
    assert (after["epoch"], after["position"], after["step"]) == (1, 0, 0)
    resumed = load()
    resumed.load_state_dict(state)
    assert list(resumed) == []  # the empty rest of its epoch
    assert seen(resumed) == epoch_indices(1, daemon.rules)


def test_elastic_resume_repeats_and_loses_nothing(fake: Fake, load: Load) -> None:
    fake()
    two = [load(rank=r, world_size=2) for r in range(2)]
    taken = []
    for loader in two:
        batches = iter(loader)
        taken += seen(next(batches) for _ in range(3))
    states = [loader.state_dict() for loader in two]
    assert states[0] == states[1]
    for rank in range(3):
        loader = load(rank=rank, world_size=3, batch_size=5)
        loader.load_state_dict(states[0])
        rest = list(loader)
        assert rest[0].step == 3
        taken += seen(rest)
    assert sorted(taken) == list(range(50))


def test_prefetched_batches_are_not_yet_yielded(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=8)
    batches = iter(loader)
    next(batches)
    until("a full window", lambda: len(next(iter(daemon.sessions.values())).sent) == 9)
    assert loader.state_dict()["position"] == 4


def test_a_state_loaded_late_moves_the_present_iterator_too(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    next(batches)
    batches.load_state_dict(state)
    assert loader.state_dict() == state
    assert seen(batches) == epoch_indices(0, daemon.rules)[4:]


def test_another_order_is_refused_by_name_before_or_after_connecting(
    fake: Fake, load: Load
) -> None:
    daemon, loader = fake(), load()
    state = loader.state_dict()
    state["order"]["shuffle"] = "no"
    with pytest.raises(ConfigError, match="shuffle was no, is yes"):
        loader.load_state_dict(state)
    assert seen(loader) == epoch_indices(0, daemon.rules)
    late = load()
    late.load_state_dict(state)
    with pytest.raises(ConfigError, match="shuffle was no, is yes"):
        next(iter(late))


@pytest.mark.parametrize("known", [True, False])
def test_a_position_that_no_epoch_has_is_refused_before_and_after_connecting(
    fake: Fake, load: Load, known: bool
) -> None:
    daemon = fake()
    state = {**load().state_dict(), "position": 10**9}
    late = load()
    with pytest.raises(ConfigError, match=r"position=1000000000 is beyond the epoch's 50 samples"):
        use(late, state, known)
    late.load_state_dict({**state, "position": 0})
    assert seen(late) == epoch_indices(0, daemon.rules)


def use(loader: Loader[Any], state: dict[str, Any], known: bool) -> None:
    if known:
        len(loader)
    loader.load_state_dict(state)
    next(iter(loader))


def test_other_content_is_one_warning(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    daemon, loader = fake(), load()
    state = loader.state_dict()
    state["content"]["transforms"] = "flip"
    late = load()
    late.load_state_dict(state)
    assert seen(late) == epoch_indices(0, daemon.rules)
    assert caplog.text.count("transforms was flip, is none") == 1


def test_a_loader_pickles_as_its_arguments_and_cursor(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    fresh = pickle.loads(pickle.dumps(loader))
    batches = iter(loader)
    got = seen(next(batches) for _ in range(5))
    with copy.copy(loader) as twin, pickle.loads(pickle.dumps(loader)) as other:
        assert twin.state_dict() == loader.state_dict()
        assert got + seen(other) == epoch_indices(0, daemon.rules)
    assert got + seen(batches) == epoch_indices(0, daemon.rules)
    assert fresh.epoch == 0


# What it is


@pytest.mark.parametrize(
    ("starting", "waits"), [((), False), (("opening train",), True)], ids=["there", "starting"]
)
def test_the_wait_for_a_daemon_that_starts_is_told_apart(
    fake: Fake, load: Load, starting: tuple[str, ...], waits: bool
) -> None:
    fake(starting=starting)
    loader = load()
    assert loader.stats()["started_s"] == 0.0
    next(iter(loader))
    stats = loader.stats()
    assert (stats["started_s"] > 0.0) == waits
    assert stats["started_s"] <= stats["waited_s"]


def test_what_a_loader_says_of_itself(fake: Fake, load: Load) -> None:
    fake()
    loader = load(batch_size=5)
    assert (loader.batch_size, loader.drop_last, loader.epoch) == (5, False, 0)
    assert loader.classes == ("cat", "dog")
    assert len(loader.dataset) == 50
    seen(loader)
    stats = loader.stats()
    assert stats["batches"] == 10
    assert stats["bytes"] == 50 * (64 * 512 + 8)
    assert 0 <= stats["wait_fraction"] <= 1


def test_lightning_trains_with_a_loader_two_epochs_exactly(fake: Fake, tmp_path: Path) -> None:
    daemon = fake()
    out, err = finished(
        trainer(
            f"""
        import warnings
        warnings.simplefilter("ignore")
        import torch
        from loaderd_testing.torchvision_import import declare_operators
        declare_operators()  # of torchvision, which Lightning imports where it is installed
        import lightning
        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.seen = []
            def training_step(self, batch, number):
                self.seen += batch["y"].tolist()
                return self.layer(batch["y"][:, None].float()).mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 1e-9)
        def fit(epochs):
            model = Model()
            quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
            trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **quiet)
            with Loader({daemon.path!r}, "train") as loader:
                trainer.fit(model, loader)
            return model.seen
        print(fit(2))
    """,
            env={"CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
        )
    )
    lines = out.splitlines()
    assert lines, err
    assert lines[-1] == str(epoch_indices(0, daemon.rules) + epoch_indices(1, daemon.rules))


def test_an_iterator_says_that_its_loader_is_what_can_be_pickled(fake: Fake, load: Load) -> None:
    fake()
    batches = iter(load())
    next(batches)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle the Loader, which keeps its place"):
            copied(batches)


def test_a_batch_is_a_dict_that_can_be_rebuilt_copied_and_pickled(fake: Fake, load: Load) -> None:
    fake(keys="stored")
    batch = next(iter(load()))
    assert batch.sample_keys == [f"key-{i}" for i in batch.indices]
    assert (batch.epoch, batch.step, batch.rows, batch.errors) == (0, 0, 4, ())
    rebuilt = type(batch)(dict(batch.items()))
    assert (
        rebuilt.epoch,
        rebuilt.indices,
        rebuilt.sample_keys,
        rebuilt.rows,
        rebuilt.step,
        rebuilt.errors,
    ) == (None,) * 6
    fresh = next(iter(load()))
    for other in (pickle.loads(pickle.dumps(fresh)), copy.deepcopy(fresh), copy.copy(fresh)):
        assert checked(other) == checked(batch)
        assert other.sample_keys == batch.sample_keys
        assert other.step == 0
    assert set(dir(dict)) & set(vars(type(batch)) | vars(batch)) <= {
        "__doc__",
        "__module__",
        "__repr__",
    }


def test_a_batch_as_tuple_has_the_fields_in_their_order(fake: Fake, load: Load) -> None:
    fake()
    batch = next(iter(load(as_tuple=True)))
    x, y, t = batch
    assert y.tolist() == batch.indices.tolist()
    assert x.shape == (4, 64, 512)
    assert t == [f"s{i}" for i in y]
    rebuilt = type(batch)(v for v in batch)
    assert (len(rebuilt), rebuilt.step) == (3, None)
    assert pickle.loads(pickle.dumps(batch)).step == 0
    assert copy.deepcopy(batch)[1].tolist() == y.tolist()


def test_a_tuple_stream_gives_tuples_unless_told_otherwise(fake: Fake, load: Load) -> None:
    fake(form="tuple")
    assert isinstance(next(iter(load())), tuple)
    assert isinstance(next(iter(load(as_tuple=False))), dict)


def test_fields_are_chosen_and_ordered(fake: Fake, load: Load) -> None:
    daemon = fake()
    batch = next(iter(load(fields=["__key__", "y", "__index__"])))
    assert list(batch) == ["__key__", "y", "__index__"]
    assert batch["__index__"].tolist() == batch["y"].tolist()
    assert batch["__key__"] == [str(i) for i in batch["y"]] == batch.sample_keys
    assert daemon.hellos[0].fields == ("y",)
    with pytest.raises(ConfigError, match="this stream has no 'z'; it has 'y'"):
        next(iter(load(fields=["y", "z"])))


def test_pictures_are_nhwc_in_numpy_and_their_nchw_view_in_torch(fake: Fake, load: Load) -> None:
    import torch

    fake(specs=(PICTURE, Y))
    plain = next(iter(load()))["image"]
    assert plain.shape == (4, 64, 170, 3)
    tensor = next(iter(load(output="torch")))
    assert tensor["image"].shape == (4, 3, 64, 170)
    assert tensor["image"].is_contiguous(memory_format=torch.channels_last)
    assert tensor["y"].dtype == torch.int64
    assert (tensor["image"].permute(0, 2, 3, 1).numpy() == plain).all()


def test_each_next_is_a_range_of_torchs_profiler_that_says_which_batch(
    fake: Fake, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    fake(samples=12)
    batches = iter(load())
    next(batches)
    with torch.profiler.profile(record_shapes=True) as profile:
        next(batches)
        next(batches)
        with pytest.raises(StopIteration):
            next(batches)
    ranges = [event for event in profile.events() or [] if event.name == "loaderd.next"]
    assert [event.kwinputs for event in ranges[:2]] == [
        {"epoch": 0, "step": 1},
        {"epoch": 0, "step": 2},
    ]
    monkeypatch.delattr("torch._C._profiler._RecordFunctionFast")  # as in older versions
    with torch.profiler.profile() as profile:
        next(batches := iter(load()))
    assert "loaderd.next" in {event.name for event in profile.events() or []}


def test_a_collated_batch_has_the_shapes_that_it_says(fake: Fake, load: Load) -> None:
    fake(collated=True, specs=(X, type(Y)("t", "", (), "text")), samples=10)
    batches = list(load())
    assert [b["x"].shape for b in batches] == [(4, 4), (4, 4), (2, 2)]
    assert all(b["x"][:, 0].tolist() == b.indices.tolist() for b in batches)
    assert batches[0]["t"] == [f"s{i}" for i in batches[0].indices]


def test_a_dtype_that_torch_lacks_is_named(fake: Fake, load: Load) -> None:
    from dataclasses import replace

    fake(specs=(replace(X, dtype="<c8"), replace(Y, name="long", dtype="<f16")))
    with pytest.raises(ConfigError, match="'long'"):
        next(iter(load(output="torch")))


def test_normalize_is_what_torchvision_does() -> None:
    import torch

    from loaderd_client import normalize

    images = torch.randint(0, 256, (2, 3, 5, 6), dtype=torch.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    expected = (images.float() / 255 - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(
        std
    ).view(1, 3, 1, 1)
    assert torch.allclose(normalize(images, mean, std), expected, atol=1e-5)
    for wrong in (
        (images.float(), mean, std),
        (images[0], mean, std),
        (images, mean[:1], std),
        (images, mean, [1, 0, 1]),
    ):
        with pytest.raises(ConfigError, match=r"normalize: (images must be uint8|mean=)"):
            normalize(*wrong)


# Attaching


def test_nobody_there_is_told_after_reconnect_s_naming_the_path(load: Load) -> None:
    with pytest.raises(
        DaemonGoneError, match=r"no daemon is at .*d\.sock; start one: loaderd serve CONFIG"
    ):
        len(load(reconnect_s=0.2))


def test_a_daemon_that_always_leaves_before_it_answers_is_told_so(
    tmp_path: Path, load: Load
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d.sock"))
        listener.listen()

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(
                DaemonGoneError,
                match=r"the daemon at .*/d\.sock closes each connection without an answer",
            ):
                len(load(reconnect_s=0.2, timeout_s=5))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_daemon_that_comes_late_is_found(fake: Fake, load: Load) -> None:
    loader = load()
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(len(loader)))
    thread.start()
    fake()
    thread.join(DEADLINE_S)
    assert result == [13]


def test_a_daemon_that_starts_is_waited_for_with_a_line(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake(starting=("opening train",), starts_for_ever=True)
    for timeout_s in (0.5, 5.0, 50.0):  # a busy machine's daemon says it later
        with pytest.raises(LoaderdError) as caught:
            len(load(timeout_s=timeout_s, stall_warning_s=timeout_s / 5))
        if "opening train" in caplog.text:
            break
    assert "opening train" in str(caught.value)
    assert "opening train" in caplog.text


@pytest.mark.parametrize("error", ["ConfigError", "RefusedError", "StreamChangedError"])
def test_a_rejection_is_raised_as_what_it_names(fake: Fake, load: Load, error: str) -> None:
    daemon = fake(reject=(error, "needs 8 GB, has 4 GB"))
    loader = load()
    with pytest.raises(LoaderdError, match="needs 8 GB") as caught:
        len(loader)
    assert type(caught.value).__name__ == error
    daemon.rules.reject = None
    assert len(loader) == 13


def test_a_folder_that_may_not_be_entered_is_refused_with_the_uid(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        code = f"""
        import os
        os.setuid(65533)
        from loaderd_client import RefusedError
        try:
            len(Loader({str(tmp_path / "closed/d.sock")!r}, "train", output="numpy"))
        except RefusedError as error:
            print("65533" in str(error))
        """
    else:
        code = f"""
        from loaderd_client import RefusedError
        try:
            len(Loader({str(tmp_path / "closed/d.sock")!r}, "train", output="numpy"))
        except RefusedError as error:
            print({str(os.geteuid())!r} in str(error))
        """
    (tmp_path / "closed").mkdir(mode=0o000)
    out, err = finished(trainer(code))
    assert out == "True\n", err


def test_an_epoch_without_a_step_is_refused_with_the_numbers(fake: Fake, load: Load) -> None:
    fake()
    with pytest.raises(ConfigError, match=r"50 samples.*batch_size=64"):
        len(load(batch_size=64, drop_last=True))


# Leaving


def test_a_closed_loader_says_so_and_its_tensors_stay(fake: Fake, load: Load) -> None:
    daemon = fake()
    with load() as loader:
        held = [b for b, _ in zip(loader, range(3), strict=False)]
    until("the session's end", lambda: not daemon.sessions)
    loader.close()
    assert seen(held) == epoch_indices(0, daemon.rules)[:12]
    with pytest.raises(LoaderdError, match="is closed; make a new one"):
        next(iter(loader))
    assert len(loader) == 13


def test_a_loader_that_is_dropped_ends_its_session(fake: Fake, tmp_path: Path) -> None:
    daemon = fake()
    batches = iter(Loader(tmp_path / "d.sock", "train", output="numpy"))
    held = next(batches)
    assert len(daemon.sessions) == 1
    del batches
    until("the session's end", lambda: not daemon.sessions)
    checked(held)


def test_importing_the_client_imports_nothing_heavy() -> None:
    code = "print(sorted({'torch', 'lmdb', 'loaderd', 'cv2', 'PIL'} & set(sys.modules)))"
    fresh = trainer(code, env={})  # no fork of what has imported more
    assert finished(fresh)[0] == "[]\n"


def test_ctrl_c_leaves_at_once_and_nothing_behind(fake: Fake) -> None:
    daemon = fake()
    process = trainer(f"""
        loader = Loader({daemon.path!r}, "train", output="numpy")
        batches = iter(loader)
        next(batches)
        print("going", flush=True)
        for batch in batches:
            pass
        for batch in loader:
            pass
        while True:
            for batch in loader: pass
    """)
    assert line_of(process) == "going\n"
    daemon.rules.makes = False
    process.send_signal(signal.SIGINT)
    _, err = finished(process)
    assert process.returncode != 0
    assert err.strip().endswith("KeyboardInterrupt")
    until("the session's end", lambda: not daemon.sessions)


def test_ctrl_c_at_any_moment_loses_no_batch(fake: Fake) -> None:
    daemon = fake()
    process = trainer(f"""
        import os, signal, threading
        loader = Loader({daemon.path!r}, "train", output="numpy")
        stop, inside, hit = threading.Event(), False, 0
        def shoot():
            while not stop.wait(0.02):
                os.kill(os.getpid(), signal.SIGUSR1)
        def interrupt(number, frame):
            # Once a call, and only inside the client: what Python loses between a return and an assignment is nobody's to save.
            global inside, hit
            if inside and "loaderd_client" in frame.f_code.co_filename:
                inside, hit = False, hit + 1
                raise KeyboardInterrupt
        signal.signal(signal.SIGUSR1, interrupt)
        threading.Thread(target=shoot, daemon=True).start()
        got = []
        batches = iter(loader)
        while hit < 25:
            batch, inside = None, True
            try:
                batch = next(batches)
            except StopIteration:
                inside = False
                batches = iter(loader)
            except KeyboardInterrupt:
                pass
            inside = False
            if batch is not None:
                checked(batch)
                got.append(batch.epoch * len(loader) + batch.step)
        stop.set()
        print(got == list(range(len(got))))
    """)
    out, err = finished(process)
    assert out == "True\n", err


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize(
    "end", ["", "sys.exit(0)", "raise RuntimeError('user')", "import os; os._exit(0)"]
)
def test_an_interpreter_that_exits_with_leases_does_so_quietly(
    fake: Fake, end: str, output: str
) -> None:
    daemon = fake()
    code = f"""
        loader = Loader({daemon.path!r}, "train", output={output!r})
        kept = [b for b, _ in zip(loader, range(3))]
        cycle = [kept]; cycle.append(cycle)
        {end}
    """
    _, err = finished(trainer(code, imports=TORCH if output == "torch" else TRAINING))
    assert ("RuntimeError: user" in err) == ("raise" in end)
    assert "Exception ignored" not in err
    assert "Warning" not in err
    until("the session's end", lambda: not daemon.sessions)


def test_the_state_may_be_saved_in_a_signals_handler_during_next(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    batches = iter(loader)
    next(batches)
    daemon.rules.makes = False
    states = []

    def handler(*_: object) -> None:
        states.append(loader.state_dict())
        daemon.rules.makes = True
        daemon.wake()

    step = 0
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(6):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            step = next(batches).step
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert step == 6
    assert all(s["position"] % 4 == 0 for s in states)


# Forks and threads


def test_a_forked_child_is_told_and_its_parent_undisturbed(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    batches = iter(loader)
    first = next(batches)
    pid = os.fork()
    if pid == 0:
        code, rows = 1, []
        try:
            rows = checked(first)
            del first
            next(batches)
        except LoaderdError as error:
            code = 0 if "fork" in str(error) and rows else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert checked(first) + seen(batches) == epoch_indices(0, daemon.rules)


def test_a_sleeping_child_does_not_keep_a_dead_trainers_session(fake: Fake) -> None:
    daemon = fake()
    process = trainer(f"""
        import os, signal
        loader = Loader({daemon.path!r}, "train", output="numpy")
        held = next(iter(loader))
        pid = os.fork()
        if pid == 0:
            signal.pause()
        print(pid, flush=True)
        signal.pause()
    """)
    child = int(line_of(process))
    try:
        assert len(daemon.sessions) == 1
        process.kill()
        until("the session's end", lambda: not daemon.sessions)
    finally:
        os.kill(child, signal.SIGKILL)
        finished(process)


def test_a_loader_made_before_a_fork_and_used_after_it_is_each_childs_own(fake: Fake) -> None:
    daemon = fake()
    out, err = finished(
        trainer(f"""
        import os
        loader = Loader({daemon.path!r}, "train", output="numpy")
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE="2")
                os.write(1, (" ".join(map(str, seen(loader))) + "\\n").encode())
                loader.close()
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
    """)
    )
    assert sorted(int(i) for i in out.split()) == list(range(50)), err


def test_inside_a_dataloader_worker_it_is_loud(fake: Fake) -> None:
    daemon = fake()
    out, err = finished(
        trainer(f"""
        import torch
        class Wrapped(torch.utils.data.IterableDataset):
            def __init__(self):
                self.loader = Loader({daemon.path!r}, "train", output="numpy")
            def __iter__(self):
                return iter(self.loader)
        try:
            list(torch.utils.data.DataLoader(Wrapped(), batch_size=None, num_workers=2, multiprocessing_context="fork"))
        except Exception as error:
            print("num_workers=0" in str(error))
        print(len(list(torch.utils.data.DataLoader(Wrapped(), batch_size=None, num_workers=0))))
    """)
    )
    assert out == "True\n13\n", err


def test_eight_threads_pull_every_batch_once(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    batches = iter(loader)
    got: list[list[int]] = []

    def pull() -> None:
        got.extend(checked(batch) for batch in batches)

    threads = [threading.Thread(target=pull) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(i for rows in got for i in rows) == sorted(epoch_indices(0, daemon.rules))

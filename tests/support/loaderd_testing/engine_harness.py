"""A pool with real processes and a loop that a test turns by hand, until what it waits for has
happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from loaderd.config.schema import WorkersConfig
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.events import Event, WorkerDied, WorkerDone, WorkerPoll, WorkerReady
from loaderd.core.jobs import Done, Job, JobKind
from loaderd.engine.local import LocalEngine
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.system.loop import Loop
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec, SlotLayout, slot_layout

WARES = '''
import ctypes, os, random, signal, subprocess, sys, threading, time
import numpy as np

class Numbers:
    """Sample i is {"x": int64[3] of i, "y": i}; `bad`: index -> what it does instead, a function of this module."""
    def __init__(self, count=100, bad=None):
        self.count, self.bad = count, {int(k): v for k, v in (bad or {}).items()}
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        if index in self.bad:
            globals()[self.bad[index]]()
        return {"x": np.full(3, index, np.int64), "y": index}

class Words(Numbers):
    def __getitem__(self, index):
        return {"word": "w" * (index % 50), "raw": bytes([index % 256]) * 3, "n": index}

class Many(Numbers):
    def __getitems__(self, indices):
        return [self[i] for i in indices]

class Uneven(Numbers):
    def __getitem__(self, index):
        return {"x": np.zeros(4 if index == 50 else 3)}

class Odd(Numbers):
    def __getitem__(self, index):
        return {"x": np.full(3, index, np.float32 if index == 50 else np.int64), "y": index}

class Box:
    pass

class Anything(Numbers):
    """Every fourth is a dict of lists, None, an object, a list."""
    def __getitem__(self, index):
        return ({"ids": [1, 2], "more": [{"a": None}]}, None, Box(), [index, [index]])[index % 4]

class NoneAt(Numbers):
    def __getitem__(self, index):
        return None if index in self.bad else super().__getitem__(index)

class Crashing(Numbers):
    def __init__(self, how):
        globals()[how]()

class Environment(Numbers):
    def __getitem__(self, index):
        return {"text": " ".join(f"{k}={os.environ.get(k)}" for k in ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS"))}

class Chances(Numbers):
    def __getitem__(self, index):
        if index in self.bad:
            globals()[self.bad[index]]()
        return {"a": random.random(), "b": np.random.rand(), "i": index}

class ManyChances(Chances):
    def __getitems__(self, indices):
        return [self[i] for i in indices]

class Wild(Numbers):
    """Draws only in some samples, and leaves the global generators as they should not be left."""
    def __getitem__(self, index):
        a = b = 0.0
        if index % 4 == 1:
            a, b = random.gauss(0, 1), np.random.randn()
        elif index % 4 == 2:
            python, numpy = random.getstate(), np.random.get_state()
            a, b = random.random(), np.random.rand()
            random.setstate(python), np.random.set_state(numpy)
        elif index % 8 == 3:
            random.seed(1), np.random.seed(1)
        return {"a": a, "b": b, "i": index}

def raises(): raise ValueError("this one is bad")
def exits(): sys.exit("a dataset that leaves")
def interrupts(): raise KeyboardInterrupt
def recurses(): recurses()
def generator_exit(): raise GeneratorExit
def no_memory(): raise MemoryError("all gone")
def leaves(): os._exit(3)
def segfaults(): ctypes.string_at(0)
def aborts(): os.abort()
def sleeps():
    while True: ctypes.CDLL(None).sleep(1000)
def waits_then_segfaults():
    while not os.path.exists(HERE + "/go"):
        time.sleep(0.01)
    segfaults()
def takes_the_handler_away():
    for number in range(34, 65):
        signal.signal(number, signal.SIG_DFL)
    while not os.path.exists(HERE + "/go"):
        time.sleep(0.01)
def holds_the_gil():
    while True: ctypes.PyDLL(None).sleep(1000)
def closes_all(): os.closerange(3, 256)
def prints(): print("a line of the user"); print("to stderr", file=sys.stderr); print("half a line", end="")
def prints_and_sleeps():
    print("before the end")
    sleeps()
def prints_much():
    for i in range(20000): print("line", i)
def prints_200_megabytes():
    for _ in range(2000):
        os.write(1, b"a line of nineteen\\n" * 5263)
def prints_a_line_without_end():
    for _ in range(100):
        os.write(1, b"0123456789" * 10_000)
def floods_and_dies():
    os.write(2, b"a line of nineteen\\n" * 55_300)
    os._exit(1)
def moves(): os.chdir("/"); signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.signal(signal.SIGINT, signal.SIG_DFL)
def dies_softly(): os.kill(os.getpid(), signal.SIGTERM)
def leaves_processes():
    subprocess.Popen(["tail", "-f", __file__], stdout=subprocess.DEVNULL, start_new_session=True)
    subprocess.Popen(["sh", "-c", f"tail -f {__file__} & tail -f {__file__}"], stdout=subprocess.DEVNULL)
def leaves_sessions():
    subprocess.Popen(["setsid", "sh", "-c", f"setsid tail -f {__file__} & wait"], stdout=subprocess.DEVNULL)
def terminates_a_child():
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"!")
        time.sleep(300)
        os._exit(0)
    os.read(read, 1)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
def leaves_an_orphan():
    subprocess.run(["sh", "-c", f"tail -f {__file__} >/dev/null 2>&1 &"])
def talks_nonsense():
    for fd in range(3, 64):
        try: os.write(fd, b"\\0nonsense")
        except OSError: pass
def falls_back():
    """Forks, and lets the child go on as if it were the worker."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
def forks_and_looks():
    """Writes down what a forked child sees of its parent's memory and descriptors."""
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/maps") as maps, open(HERE + "/child.maps", "w") as out:
            out.write(maps.read())
        fds = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if int(fd) != 3 and os.path.lexists("/proc/self/fd/" + fd)]
        with open(HERE + "/child.fds", "w") as out:
            out.write("\\n".join(fds))
        os._exit(0)
    os.waitpid(pid, 0)
def tries_signals():
    """A program that user code starts has ears for signals, whatever its parent ignores."""
    code = subprocess.run(["sh", "-c", "kill -TERM $$; sleep 10"]).returncode
    with open(HERE + "/signals", "w") as out:
        out.write(str(code))
def hoards():
    global hoard
    hoard = bytearray(os.urandom(1 << 20) * 100)
HERE = os.path.dirname(os.path.abspath(__file__))

def add(sample, rng, amount=1):
    return {**sample, "x": sample["x"] + amount}

def dies_at(sample, rng, y):
    if sample["y"] == y:
        segfaults()
    return sample

def stacked(samples, rng):
    return {"x": np.stack([s["x"] for s in samples]), "names": [str(int(s["y"])) for s in samples]}

def described(samples):
    return {
        "ids": np.arange(len(samples)),
        "boxes": [np.ones((n, 4), np.float32) for n in range(len(samples))],
        "kinds": [type(s).__name__ for s in samples],
    }

def picky(samples, rng):
    if any(s["y"] == 50 for s in samples):
        return 1 / 0
    return stacked(samples, rng)

def moody(samples, rng):
    batch = stacked(samples, rng)
    how = {20: "more", 30: "less", 40: "floats", 50: "texts", 60: "arrays"}.get(int(samples[0]["y"]))
    if how == "more":
        batch["z"] = np.ones(2)
    elif how == "less":
        del batch["names"]
    elif how == "floats":
        batch["x"] = batch["x"].astype(np.float64)
    elif how == "texts":
        batch["x"] = ["a"]
    elif how == "arrays":
        batch["names"] = np.ones(3)
    elif how is None:
        batch = {"names": batch["names"], "x": batch["x"][:, :1]}  # in another order and shape
    return batch

def setup(worker_id):
    print("set up", worker_id)

def slow_setup(worker_id):
    while not os.path.exists(HERE + "/go"):
        time.sleep(0.01)

def bad_setup(worker_id):
    raise RuntimeError("no such worker here")
'''

TORCHED = """
import torch
from torch.utils.data import get_worker_info

torch.set_num_threads(4)

class Torches:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        info = get_worker_info()
        same = info.dataset is self
        return {"id": info.id, "of": info.num_workers, "same": same, "drawn": float(torch.rand(())), "n": torch.get_num_threads()}
"""


LATE = """
import ctypes, importlib, os, random, sys, threading, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

class Late:
    def __len__(self):
        return 100
    def draw(self):
        return random.random() + random.gauss(0, 1) + np.random.rand() + np.random.randn()
    def __getitem__(self, index):
        before = self.draw()
        self.load(index)
        return {"before": before, "after": self.draw(), "i": index}

class LateTorch(Late):
    def __getitem__(self, index):
        first = "torch" not in sys.modules
        import torch
        info = torch.utils.data.get_worker_info()
        known = -1 if info is None or info.dataset is not self else info.id
        return {"drawn": float(torch.rand(())), "first": first, "known": known}

class LateSeeder(Late):
    def load(self, index):
        import seeder

class LateInThread(Late):
    def load(self, index):
        thread = threading.Thread(target=importlib.import_module, args=("waiter",))
        thread.start()
        thread.join()

class LateWaiter(Late):
    def load(self, index):
        if index == 20:
            import waiter
            while not os.path.exists(HERE + "/over"):
                time.sleep(0.01)

class LateInChild(Late):
    fork = staticmethod(os.fork)
    def load(self, index):
        pid = self.fork()
        if not pid:
            try:
                import seeder
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

class LateInChildOfC(LateInChild):
    fork = ctypes.PyDLL(None).fork  # nothing that Python would do for the child is done

class LateFailure(Late):
    def load(self, index):
        import no_such_module
"""

SEEDER = "import random, numpy\nrandom.seed(1), numpy.random.seed(1), random.gauss(0, 1), numpy.random.randn()"

WAITER = """
import os, time
open(HERE + "/begun", "w").close()
while not os.path.exists(HERE + "/go"):
    time.sleep(0.01)
"""


class Pond:
    """A segment's memory as a client would see it."""

    def __init__(self, segment: Segment, fields: tuple[FieldSpec, ...], rows: int, fd: int) -> None:
        self.segment = segment
        self.fd = fd
        self.layout: SlotLayout = slot_layout(
            fields, rows, tail_row_bytes=segment.tail_row_bytes, body_bytes=segment.body_bytes
        )

    def read(self, slot: int) -> bytes:
        return os.pread(self.fd, self.segment.slot_bytes, slot * self.segment.slot_bytes)

    def indices(self, slot: int, rows: int) -> list[int]:
        return np.frombuffer(self.read(slot), np.int64, rows).tolist()

    def field(self, slot: int, name: str, rows: int) -> np.ndarray:
        at = next(n for n, field in enumerate(self.layout.fields) if field.name == name)
        field = self.layout.fields[at]
        flat = np.frombuffer(
            self.read(slot),
            field.dtype,
            rows * int(np.prod(field.shape, dtype=int)),
            self.layout.offsets[at],
        )
        return flat.reshape((rows, *field.shape))

    def chunk(self, slot: int, done: Done) -> dict[str, Any]:
        return msgpack.unpackb(self.read(slot)[done.offset : done.offset + done.size])


class Workshop:
    """Owns loop, pool and segments. `folder` is the users' own, with the module `wares`."""

    def __init__(self, folder: Path, plans: Sequence[StreamConfig], **options: Any) -> None:
        (folder / "wares.py").write_text(WARES)
        (folder / "torched.py").write_text(TORCHED)
        (folder / "late.py").write_text(LATE)
        (folder / "seeder.py").write_text(SEEDER)
        (folder / "waiter.py").write_text(f"HERE = {str(folder)!r}\n{WAITER}")
        self.loop = Loop()
        self.events: list[Event] = []
        self.lines: list[str] = []
        self.ponds: list[Pond] = []
        self._jobs = 0
        self._facts: dict[str, StreamInfo] = {}
        self._segments = 0
        config = WorkersConfig(
            **{
                each.name: options.pop(each.name)
                for each in fields(WorkersConfig)
                if each.name in options
            }
        )
        number = config.num_workers if isinstance(config.num_workers, int) else 2
        options = {"folder": str(folder), **options}
        self.pool = LocalEngine(
            self.loop,
            plans,
            config,
            num_workers=number,
            emit=self.events.append,
            log=lambda level, event, text, **_: self.lines.append(text),
            **options,
        )

    def close(self) -> None:
        self.pool.close()
        self.loop.close()
        for pond in self.ponds:
            os.close(pond.fd)

    def drain(self) -> None:
        """Drop every segment, and wait until no worker has it mapped."""
        gone: list[int] = []
        for pond in self.ponds:
            self.pool.drop_segment(
                pond.segment.segment, lambda number=pond.segment.segment: gone.append(number)
            )
        self.until(lambda: len(gone) == len(self.ponds), "the workers to unmap")
        for pond in self.ponds:
            os.close(pond.fd)
        self.ponds.clear()

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Turn the loop until condition() is true; returns what it was. Fails after DEADLINE_S."""
        end_s = time.monotonic() + DEADLINE_S
        while not (value := condition()):
            assert time.monotonic() < end_s, (
                f"waited in vain{' for ' + what if what else ''}: {self.events[-5:]} {self.lines[-20:]}"
            )
            self.loop.turn(0.05)
        return value

    def open(self, stream: str) -> StreamInfo | OpenError:
        found: list[StreamInfo | OpenError] = []
        self.pool.open(stream, found.append)
        self.until(lambda: found, f"stream {stream!r}")
        return found[0]

    def facts(self, stream: str) -> StreamInfo:
        if stream not in self._facts:
            found = self.open(stream)
            assert isinstance(found, StreamInfo), found
            self._facts[stream] = found
        return self._facts[stream]

    def start(self, *workers: int) -> None:
        for worker in workers:
            self.pool.start(worker, 0.0)
        for worker in workers:
            self.until(
                lambda worker=worker: self.ready(worker) or self.died(worker), f"worker {worker}"
            )
            assert self.ready(worker), self.died(worker)

    def ready(self, worker: int) -> bool:
        return WorkerReady(worker) in self.events

    def died(self, worker: int) -> WorkerDied | None:
        return next(
            (e for e in self.events if isinstance(e, WorkerDied) and e.worker == worker), None
        )

    def death(self, worker: int) -> WorkerDied:
        return self.until(lambda: self.died(worker), f"the end of worker {worker}")

    def pid(self, worker: int) -> int:
        return self.pool.status().workers[worker].pid

    def threads_of_template(self) -> int:
        return len(os.listdir(f"/proc/{self.pool.status().fork_server.pid}/task"))

    def pond(
        self,
        facts: StreamInfo,
        rows: int,
        slots: int = 2,
        *,
        tail: int | None = None,
        body: int | None = None,
    ) -> Pond:
        """A new segment for this stream, which jobs are for from now on."""
        fields = () if facts.collated else facts.specs
        tail = facts.tail_row_bytes if tail is None else tail
        body = facts.body_bytes if body is None else body
        layout = slot_layout(fields, rows, tail_row_bytes=tail, body_bytes=body)
        self._segments += 1
        segment = Segment(self._segments, slots, layout.slot_bytes, tail, body)
        fd = os.memfd_create("pond")
        os.ftruncate(fd, slots * layout.slot_bytes)
        self.ponds.append(Pond(segment, fields, rows, fd))
        self.pool.add_segment(segment, facts.stream, facts.specs, rows, fd)
        return self.ponds[-1]

    def job(
        self,
        stream: str,
        rows: int,
        *,
        kind: JobKind = JobKind.FILL,
        start: int = 0,
        first: int = 0,
        last: int = -1,
        **more: Any,
    ) -> Job:
        self._jobs += 1
        values = {"segment": self._segments, "slot": 0, "seed": 7, "epoch": 0, **more}
        return Job(
            self._jobs, kind, stream, values.pop("segment"), values.pop("slot"), values.pop("seed"), values.pop("epoch"),
            start, rows, first, rows if last < 0 else last, **values,
        )  # fmt: skip

    def run(self, worker: int, job: Job) -> Done:
        self.pool.send(worker, job)
        return self.answer(worker, job)

    def answer(self, worker: int, job: Job) -> Done:
        def there() -> Done | None:
            assert self.died(worker) is None, self.died(worker)
            return next(
                (
                    e.done
                    for e in self.events
                    if isinstance(e, WorkerDone) and e.done.job == job.job
                ),
                None,
            )

        return self.until(there, f"{job}")

    def look(self) -> WorkerPoll:
        return self.pool.look()


def numbers(name: str = "train", **options: Any) -> StreamConfig:
    """A stream of wares.Numbers: `count` and all that isn't a setting are arguments of the dataset."""
    words = set(StreamConfig.__slots__) - {"count"}
    settings = {key: options.pop(key) for key in tuple(options) if key in words}
    cls = settings.pop("dataset", "wares:Numbers")
    return StreamConfig(name, dataset=cls, dataset_args=options, **settings)


def adding(amount: int) -> TransformConfig:
    return TransformConfig(None, "wares:add", {"amount": amount})

"""The Job of kubernetes/base with images made by the steps of the Dockerfiles: read-only roots, separate
namespaces, a uid without a name, no HOME, 64 MB of /dev/shm, and one shared folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import yaml

from loaderd.data.sample import Sample
from loaderd_testing.containers import Image, build
from loaderd_testing.daemon_harness import alive, children, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import coded, picture, write_own

DEPLOY = Path(__file__).parents[2] / "deploy"
# It waits for a line at step 1, says at SIGTERM where it is, and goes on from there.
TRAIN = """
import argparse, hashlib, json, os, signal, sys
from loaderd_client import Loader

parser = argparse.ArgumentParser()
parser.add_argument("--data")
ended = []
signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
assert "HOME" not in os.environ and os.getpid() == 1
with Loader(parser.parse_args().data, stream="train", output="numpy") as loader:
    if "STATE" in os.environ:
        loader.load_state_dict(json.loads(os.environ["STATE"]))
    for batch in loader:
        image = hashlib.sha256(batch["image"].tobytes()).hexdigest()
        print(json.dumps([batch.step, batch.indices.tolist(), image]), flush=True)
        if batch.step == 1 and "STATE" not in os.environ:
            print("half", flush=True)
            sys.stdin.readline()
        if ended:
            print(json.dumps(loader.state_dict()), flush=True)
            break
"""


def stage(folder: Path) -> tuple[Image, Image]:
    """The images of daemon and trainer."""
    daemon = build(DEPLOY / "Dockerfile", folder / "daemon", DEPLOY.parent)
    (folder / "context").mkdir()
    (folder / "context" / "train.py").write_text(TRAIN)
    others = {"registry.example.com/loaderd:0.1.0": daemon}
    trainer = build(DEPLOY / "Dockerfile.trainer", folder / "trainer", folder / "context", others)
    return daemon, trainer


class Pod:
    """The containers of a Job's pod, each in namespaces of its own; a test is the kubelet.

    Attributes:
        log: What the sidecar writes.
    """

    def __init__(self, manifest: Path, folder: Path, images: tuple[Image, Image]) -> None:
        found = {one["kind"]: one for one in yaml.safe_load_all(manifest.read_text())}
        self._spec = found["Job"]["spec"]["template"]["spec"]
        self._volumes = {one["name"]: folder / one["name"] for one in self._spec["volumes"]}
        for place in self._volumes.values():
            place.mkdir(exist_ok=True)
        (folder / "config" / "config.toml").write_text(found["ConfigMap"]["data"]["config.toml"])
        self._images = {"loaderd": images[0], "trainer": images[1]}
        self.log = folder / "loaderd.log"
        self._running: list[subprocess.Popen[Any]] = []

    def spec(self, name: str) -> dict[str, Any]:
        each = [*self._spec["initContainers"], *self._spec["containers"]]
        return next(one for one in each if one["name"] == name)

    def argv(self, name: str, command: list[str], **env: str) -> list[str]:
        """A container of this name that runs `command`."""
        spec, image = self.spec(name), self._images[name]
        volumes = [
            (str(self._volumes[one["name"]]), one["mountPath"], not one.get("readOnly", False))
            for one in spec["volumeMounts"]
        ]
        uid = self._spec["securityContext"]["runAsUser"]
        writable = not spec["securityContext"]["readOnlyRootFilesystem"]
        return image.argv(command, volumes=volumes, env=env, uid=uid, writable=writable)

    def sidecar(self) -> subprocess.Popen[bytes]:
        """The daemon, ready."""
        command = [*self._images["loaderd"].entrypoint, *self.spec("loaderd")["args"]]
        with self.log.open("ab") as log:
            begin = log.tell()
            made = subprocess.Popen(
                self.argv("loaderd", command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._running.append(made)
        until(
            "the sidecar",
            lambda: made.poll() is not None or b"ready: " in self.log.read_bytes()[begin:],
        )
        assert made.poll() is None, self.log.read_text()
        return made

    def probe(self, name: str = "") -> int:
        """Exit code of a probe of the sidecar, or of its image's own health check."""
        command = self._images["loaderd"].healthcheck
        if name:
            command = self.spec("loaderd")[name]["exec"]["command"]
        done = subprocess.run(
            self.argv("loaderd", command), capture_output=True, timeout=DEADLINE_S
        )
        return done.returncode

    def trainer(self, **env: str) -> subprocess.Popen[str]:
        command = self.spec("trainer")["command"]
        made = subprocess.Popen(
            self.argv("trainer", command, **env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._running.append(made)
        return made

    def close(self) -> None:
        for one in self._running:
            if one.poll() is None:
                one.kill()
            one.wait(DEADLINE_S)
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()


def inside(container: subprocess.Popen[Any]) -> int:
    """The process that is number 1 in the container."""
    (pid,) = until("process 1", lambda: children(container.pid))
    return pid


def lines(out: IO[str], last: str = "") -> list[Any]:
    """What a trainer prints, up to a line of this text, or to its end."""
    found: list[Any] = []
    for line in out:
        if line.strip() == last:
            return found
        found.append(json.loads(line))
    assert not last, found
    return found


def finished(trainer: subprocess.Popen[str]) -> list[Any]:
    """The rest of what a trainer prints; it must end well."""
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write("go\n")
    trainer.stdin.flush()
    rest = lines(trainer.stdout)
    assert trainer.wait(DEADLINE_S) == 0
    return rest


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Image, Image]:
    return stage(tmp_path_factory.mktemp("images"))


@pytest.fixture
def pod(tmp_path: Path, images: tuple[Image, Image]) -> Iterator[Pod]:
    made = Pod(DEPLOY / "kubernetes" / "base" / "job.yaml", tmp_path, images)
    samples = [
        Sample(
            {"image": coded(picture(seed=i), "JPEG"), "label": np.array(i, np.int64)},
            encoded=("image",),
        )
        for i in range(270)
    ]
    write_own(tmp_path / "data" / "train.lmdb", samples)
    yield made
    made.close()


@pytest.mark.needs("userns")
def test_a_job_completes_though_its_sidecar_is_killed_and_goes_on_after_its_pod_has_ended(
    pod: Pod,
) -> None:
    killed = pod.sidecar()
    assert [pod.probe(f"{name}Probe") for name in ("startup", "readiness", "liveness")] == [0, 0, 0]
    assert pod.probe() == 0, "as Docker would ask"
    trainer = pod.trainer()
    assert trainer.stdout is not None
    seen = lines(trainer.stdout, "half")

    daemon = inside(killed)
    orphan = ["sh", "-c", "sleep 1000 & exit"]
    subprocess.run(
        ["nsenter", "-t", str(daemon), "--user", "--preserve-credentials", "--pid", *orphan],
        check=True,
        timeout=DEADLINE_S,
    )
    (sleeper,) = until("its orphan", lambda: [pid for pid in children(daemon) if _sleeps(pid)])
    os.kill(sleeper, signal.SIGKILL)
    until("its orphan's end", lambda: sleeper not in children(daemon))

    killed.kill()
    killed.wait(DEADLINE_S)
    assert pod.probe("livenessProbe") != 0
    replaced = pod.sidecar()
    seen += finished(trainer)
    assert [step for step, _, _ in seen] == list(range(len(seen)))

    # The same epoch undisturbed, but for the end of its pod: SIGTERM to everybody.
    again = pod.trainer()
    assert again.stdout is not None
    first = lines(again.stdout, "half")
    for one in (again, replaced):
        os.kill(inside(one), signal.SIGTERM)
    *more, state = finished(again)
    assert replaced.wait(DEADLINE_S) == 0
    assert "draining: SIGTERM" in pod.log.read_text()
    last = pod.sidecar()
    rest = finished(pod.trainer(STATE=json.dumps(state)))
    assert first + more + rest == seen
    os.kill(inside(last), signal.SIGTERM)
    assert last.wait(DEADLINE_S) == 0


def _sleeps(pid: int) -> bool:
    return alive(pid) and b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.needs("userns")
def test_an_image_has_no_torch_and_its_trainer_the_same_loaderd(
    images: tuple[Image, Image],
) -> None:
    program = (
        "import importlib.util, loaderd, os; print(loaderd.__file__, importlib.util.find_spec('torch'), "
        "os.access('/', os.W_OK), os.getuid())"
    )
    for image in images:
        told = image.run(["python", "-c", program]).split()
        assert told[0].startswith("/opt/venv/")
        assert told[1:] == ["None", "False", "10001"]
    daemon, trainer = images
    assert daemon.run(["loaderd", "--version"]) == trainer.run(["loaderd", "--version"])

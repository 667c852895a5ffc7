"""What is deployed: the manifests fit Kubernetes' schemas, the image passes the linter, and the
numbers agree with each other.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from loaderd.config.load import Config, parse
from loaderd.config.types import SIZE, UNITS
from loaderd_testing.deadlines import DEADLINE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
MIB = 1 << 20
OVERHEAD = 200_000_000  # the daemon itself, and the pages that its workers share


def manifests() -> dict[str, Any]:
    return {
        document["kind"]: document
        for document in yaml.safe_load_all((DEPLOY / "job.yaml").read_text())
    }


def pod() -> dict[str, Any]:
    return manifests()["Job"]["spec"]["template"]["spec"]


def sidecar() -> dict[str, Any]:
    (container,) = pod()["initContainers"]
    return container


def config() -> Config:
    return parse(
        manifests()["ConfigMap"]["data"]["config.toml"], "/etc/loaderd/config.toml", {}, 10001
    )


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as 4608Mi."""
    match = SIZE.fullmatch(text + "B")
    assert match, text
    return int(match[1]) * UNITS[match[2]]


@pytest.mark.parametrize("version", ["1.29", "1.33"])
@pytest.mark.parametrize("kind", ["ConfigMap", "Job"])
def test_each_manifest_fits_the_schema_of_kubernetes(kind: str, version: str) -> None:
    kubernetes_validate.validate(manifests()[kind], version, strict=True)


def test_a_misspelt_field_does_not_fit_the_schema() -> None:
    job = manifests()["Job"]
    job["spec"]["template"]["spec"]["initContainers"][0]["restartpolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.29", strict=True)


def test_the_dockerfiles_pass_hadolint() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [hadolint, DEPLOY / "Dockerfile", DEPLOY / "Dockerfile.trainer"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_image_is_slim_pinned_without_torch_and_without_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    build, base = [line for line in lines if line.startswith("FROM")]
    assert re.fullmatch(r"FROM python:3\.\d+\.\d+-slim-\w+", base)
    assert build == base.replace("-slim", "") + " AS build"
    assert not [line for line in lines if "torch" in line and not line.startswith("#")]
    (user,) = [line for line in lines if line.startswith("USER")]
    assert (
        user
        == f"USER {pod()['securityContext']['runAsUser']}:{pod()['securityContext']['runAsGroup']}"
    )


def test_what_the_dockerfile_copies_is_in_the_checkout_and_in_the_context() -> None:
    copied = [
        word
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    let_in = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(copied) == let_in
    assert [word for word in copied if not (DEPLOY.parent / word).exists()] == []


def test_the_config_in_the_manifest_is_one() -> None:
    assert [stream.name for stream in config().streams] == ["train", "val"]


def test_the_daemon_is_a_native_sidecar_that_the_kubelet_ends() -> None:
    assert sidecar()["restartPolicy"] == "Always"
    assert config().daemon.exit_when_idle_s == 0
    assert pod()["terminationGracePeriodSeconds"] > config().daemon.drain_s


def test_probes_ask_for_the_socket_of_the_config() -> None:
    socket = config().daemon.socket
    assert sidecar()["startupProbe"]["exec"]["command"] == ["loaderd", "status", socket]
    assert sidecar()["readinessProbe"]["exec"]["command"] == ["loaderd", "status", socket]
    assert sidecar()["livenessProbe"]["exec"]["command"] == ["loaderd", "status", "--alive", socket]
    # `status` itself gives up on a silent daemon after 5 s; the kubelet must not be faster, or it
    # never sees the exit code
    assert all(
        sidecar()[probe]["timeoutSeconds"] > 5
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    )


def test_the_containers_share_the_sockets_folder_and_nothing_else() -> None:
    def mounts(container: dict[str, Any]) -> dict[str, str]:
        return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}

    (trainer,) = pod()["containers"]
    assert mounts(trainer).items() & mounts(sidecar()).items() == {
        ("sockets", str(Path(config().daemon.socket).parent))
    }
    assert not {"hostIPC", "hostPID", "shareProcessNamespace"} & pod().keys()
    assert config().daemon.socket in trainer["command"]


def sizes() -> list[int]:
    """`memory`, `num_workers` and `worker_memory` of the config, which leaves none of them out."""
    daemon, workers = config().daemon, config().workers
    found = daemon.memory, workers.num_workers, workers.worker_memory
    return [size for size in found if isinstance(size, int)]


def test_the_memory_limit_holds_all_that_loaderd_may_take() -> None:
    memory, num_workers, worker_memory = sizes()
    need = memory + num_workers * worker_memory + OVERHEAD
    limits = sidecar()["resources"]["limits"]
    assert need <= quantity(limits["memory"]) <= need * 1.25
    assert sidecar()["resources"]["requests"]["memory"] == limits["memory"]


def test_the_numbers_in_the_readme_are_those_of_the_manifest() -> None:
    rows = re.findall(
        r"^\|[^|]*\|([^|]*)\| (\d+)(?: MiB)? \|$", (DEPLOY / "README.md").read_text(), re.M
    )
    said = {setting.strip(): int(number) for setting, number in rows}
    memory, num_workers, worker_memory = sizes()
    assert said == {
        "`[daemon] memory`": memory // MIB,
        "`[workers] worker_memory`": worker_memory // MIB,
        "`[workers] num_workers`": num_workers,
        "200 MB": -(-OVERHEAD // MIB),
        "": -(-(memory + num_workers * worker_memory + OVERHEAD) // MIB),
        "`resources.limits.memory`": quantity(sidecar()["resources"]["limits"]["memory"]) // MIB,
    }
    text = (DEPLOY / "README.md").read_text()
    assert f"--memory {said['`resources.limits.memory`']}m " in text
    assert (
        f"`terminationGracePeriodSeconds` ({pod()['terminationGracePeriodSeconds']}) is above "
        f"`drain_s` ({config().daemon.drain_s:.0f})"
    ) in text
    assert (
        f"{sidecar()['startupProbe']['failureThreshold']} times "
        f"{sidecar()['startupProbe']['periodSeconds']} s"
    ) in text

"""What is deployed: the manifests fit Kubernetes' schemas, the image passes the linter, and the
numbers agree with each other.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from loaderd.config.load import Config, parse
from loaderd.config.types import SIZE, UNITS
from loaderd_testing.deadlines import DEADLINE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE = "base/job.yaml"
WITHOUT = "job-without-native-sidecars.yaml"
JOBS = (BASE, WITHOUT, "overlays/eight-gpus", "overlays/local-nvme")
RAY = "overlays/ray"
CLUSTER = f"{RAY}/raycluster.yaml"
NODES = ("jobset.yaml", "pytorchjob.yaml")  # whose kinds Kubernetes itself does not know
VERSIONS = ("1.29", "1.33")
ANYTHING: dict[str, Any] = {}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
# What the custom resources know of the words used here; a pod is checked by Kubernetes' own schema.
CUSTOM: dict[str, dict[str, Any]] = {
    "jobset.yaml": {
        "network": {"enableDNSHostnames": {"type": "boolean"}},
        "failurePolicy": {"maxRestarts": {"type": "integer"}},
        "replicatedJobs": {"type": "array"},
    },
    "pytorchjob.yaml": {
        "nprocPerNode": {"type": "string"},
        "runPolicy": {
            "backoffLimit": {"type": "integer"},
            "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
        },
        "pytorchReplicaSpecs": {"Master": ANYTHING, "Worker": ANYTHING},
    },
    "components/podmonitor/podmonitor.yaml": {
        "selector": {"matchLabels": ANYTHING},
        "podMetricsEndpoints": {"type": "array"},
    },
    CLUSTER: {
        "rayVersion": {"type": "string"},
        "enableInTreeAutoscaling": {"type": "boolean"},
        "autoscalerOptions": {
            "version": {"enum": ["v1", "v2"]},
            "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
            "idleTimeoutSeconds": {"type": "integer"},
            "resources": ANYTHING,
        },
        "headGroupSpec": {"rayStartParams": TEXTS, "template": ANYTHING},
        "workerGroupSpecs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "groupName": {"type": "string"},
                    "replicas": {"type": "integer"},
                    "minReplicas": {"type": "integer"},
                    "maxReplicas": {"type": "integer"},
                    "rayStartParams": TEXTS,
                    "template": ANYTHING,
                },
                "additionalProperties": False,
            },
        },
    },
}
MIB = 1 << 20
PROXY = 150_000_000  # of a process that stands for a worker on another host
OVERHEAD = 200_000_000  # the daemon itself, and the pages that its workers share


def manifests(name: str = BASE) -> dict[str, Any]:
    """The documents of a file, by kind. One in overlays/ is made of the base by its patches."""
    path = DEPLOY / "kubernetes" / name
    if not path.is_dir():
        return {one["kind"]: one for one in yaml.safe_load_all(path.read_text())}
    asked = yaml.safe_load((path / "kustomization.yaml").read_text())
    assert (path / asked["resources"][0] / "job.yaml").resolve() == DEPLOY / "kubernetes" / BASE
    assert all(
        (path / one / "kustomization.yaml").exists() for one in asked.get("components", [path])
    )
    made = manifests()
    for one in asked["patches"]:
        document = made[one["target"]["kind"]]
        assert document["metadata"]["name"] == one["target"]["name"]
        text = one["patch"] if "patch" in one else (path / one["path"]).read_text()
        for step in yaml.safe_load(text):
            apply(document, step)
    return made


def apply(document: dict[str, Any], step: dict[str, Any]) -> None:
    """One step of a JSON patch: what it replaces is there."""
    at: Any = document
    *way, last = step["path"].split("/")[1:]
    for word in way:
        at = at[int(word) if isinstance(at, list) else word]
    if step["op"] == "add" and last == "-":
        at.append(step["value"])
    elif step["op"] == "add":
        assert last not in at
        at[last] = step["value"]
    else:
        assert step["op"] == "replace"
        assert last in at
        at[last] = step["value"]


def pod(name: str = BASE) -> dict[str, Any]:
    """The pod of a file, or of each of its nodes."""
    made = manifests(name)
    if "JobSet" in made:
        (job,) = made["JobSet"]["spec"]["replicatedJobs"]
        return job["template"]["spec"]["template"]["spec"]
    if "PyTorchJob" in made:
        master, workers = made["PyTorchJob"]["spec"]["pytorchReplicaSpecs"].values()
        assert master["template"] == workers["template"]
        return master["template"]["spec"]
    return made["Job"]["spec"]["template"]["spec"]


def sidecar(name: str = BASE) -> dict[str, Any]:
    found = pod(name)
    containers = [*found.get("initContainers", ()), *found["containers"]]
    return next(one for one in containers if one["name"] == "loaderd")


def config(name: str = BASE) -> Config:
    text = manifests(name)["ConfigMap"]["data"]["config.toml"]
    return parse(text, "/etc/loaderd/config.toml", {}, 10001)


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as 4608Mi."""
    match = SIZE.fullmatch(text + "B")
    assert match, text
    return int(match[1]) * UNITS[match[2]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["ConfigMap", "Job"])
@pytest.mark.parametrize("name", [*JOBS, RAY])
def test_each_manifest_fits_the_schema_of_kubernetes(name: str, kind: str, version: str) -> None:
    kubernetes_validate.validate(manifests(name)[kind], version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NODES)
def test_each_node_of_several_is_a_pod(name: str, version: str) -> None:
    node = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, "spec": pod(name)}
    kubernetes_validate.validate(node, version, strict=True)


def closed(words: dict[str, Any]) -> dict[str, Any]:
    """The schema of a table with these words and no others."""
    kinds = {
        word: kind if not kind or "type" in kind or "enum" in kind else closed(kind)
        for word, kind in words.items()
    }
    return {"type": "object", "properties": kinds, "additionalProperties": False}


@pytest.mark.parametrize("name", CUSTOM)
def test_a_custom_resource_has_the_words_that_its_operator_knows(name: str) -> None:
    (made,) = manifests(name).values()
    jsonschema.validate(made["spec"], closed(CUSTOM[name]))


@pytest.mark.parametrize("name", NODES)
def test_the_sidecar_and_what_it_shares_are_the_same_on_every_node(name: str) -> None:
    assert sidecar(name) == sidecar()
    assert pod(name)["volumes"] == pod()["volumes"]
    assert pod(name)["securityContext"] == pod()["securityContext"]
    (node,), (single,) = pod(name)["containers"], pod()["containers"]
    assert node["volumeMounts"] == single["volumeMounts"]


def test_without_native_sidecars_the_daemon_ends_itself_and_else_nothing_differs() -> None:
    assert {**sidecar(WITHOUT), "restartPolicy": "Always"} == sidecar()
    assert "initContainers" not in pod(WITHOUT)
    there, here = config(WITHOUT), config()
    assert there.daemon.exit_when_idle_s > 0
    assert replace(there.daemon, exit_when_idle_s=0.0) == here.daemon
    assert (there.workers, there.streams) == (here.workers, here.streams)
    (volume,) = [one for one in pod(WITHOUT)["volumes"] if one["name"] == "config"]
    assert volume["configMap"]["name"] == manifests(WITHOUT)["ConfigMap"]["metadata"]["name"]


def test_the_pod_monitor_finds_the_sidecars_port() -> None:
    monitor = manifests("components/podmonitor/podmonitor.yaml")["PodMonitor"]["spec"]
    labels = manifests()["Job"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    (port,) = sidecar()["ports"]
    assert endpoint["port"] == port["name"]
    assert (config().daemon.metrics or "").endswith(f":{port['containerPort']}")


def test_copies_lie_on_the_disk_of_the_node_and_have_time() -> None:
    name = "overlays/local-nvme"
    stage = config(name).daemon.stage
    (mount,) = [one for one in sidecar(name)["volumeMounts"] if one["mountPath"] == stage]
    (volume,) = [one for one in pod(name)["volumes"] if one["name"] == mount["name"]]
    assert "hostPath" in volume
    assert not mount.get("readOnly")
    probe = sidecar(name)["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 7200


def test_compose_has_the_numbers_and_places_of_the_job() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    daemon, trainer = services["loaderd"], services["trainer"]
    limit = sidecar()["resources"]["limits"]["memory"]
    assert daemon["mem_limit"].replace("m", "Mi") == limit
    assert daemon["read_only"]
    assert trainer["read_only"]
    assert daemon["healthcheck"]["test"][1:] == sidecar()["readinessProbe"]["exec"]["command"]
    assert set(daemon["volumes"]) & set(trainer["volumes"]) == {"sockets:/run/loaderd"}
    assert float(daemon["stop_grace_period"][:-1]) > config().daemon.drain_s
    assert (DEPLOY / daemon["build"]["context"] / daemon["build"]["dockerfile"]).exists()


def groups() -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the Ray cluster: the head, and the workers."""
    spec = manifests(CLUSTER)["RayCluster"]["spec"]
    (workers,) = spec["workerGroupSpecs"]
    return spec["headGroupSpec"], workers


@pytest.mark.parametrize("version", VERSIONS)
def test_each_node_of_the_ray_cluster_is_a_pod(version: str) -> None:
    for group in groups():
        node = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}}
        kubernetes_validate.validate({**node, **group["template"]}, version, strict=True)


def test_the_daemon_joins_the_ray_cluster_that_has_room_for_its_workers() -> None:
    cluster, ray = manifests(CLUSTER)["RayCluster"], config(RAY).workers.ray
    assert ray is not None
    head = f"{cluster['metadata']['name']}-head-svc:6379"
    assert ray.address == head
    assert f"ray start --address={head} --num-cpus=0 " in sidecar(RAY)["command"][2]
    (node,) = groups()[1]["template"]["spec"]["containers"]
    cpus = int(node["resources"]["requests"]["cpu"])
    assert ray.num_workers * ray.resources["CPU"] == groups()[1]["maxReplicas"] * cpus
    assert groups()[0]["rayStartParams"]["num-cpus"] == "0"


def test_a_ray_node_sees_the_daemons_data_and_runs_its_image() -> None:
    (node,) = groups()[1]["template"]["spec"]["containers"]
    (head,) = groups()[0]["template"]["spec"]["containers"]
    (data,) = [mount for mount in sidecar(RAY)["volumeMounts"] if mount["name"] == "data"]
    (volume,) = [volume for volume in pod(RAY)["volumes"] if volume["name"] == "data"]
    assert node["volumeMounts"] == [data]
    assert groups()[1]["template"]["spec"]["volumes"] == [volume]
    asked = yaml.safe_load((DEPLOY / "kubernetes" / RAY / "kustomization.yaml").read_text())
    (image,) = asked["images"]
    assert sidecar(RAY)["image"].startswith(f"{image['name']}:")
    assert node["image"] == head["image"] == f"{image['newName']}:{image['newTag']}"


def test_the_memory_limit_holds_the_processes_that_stand_for_workers_elsewhere() -> None:
    memory, num_workers, worker_memory = sizes(RAY)
    ray = config(RAY).workers.ray
    assert ray is not None
    (shm,) = [volume for volume in pod(RAY)["volumes"] if volume["name"] == "shm"]
    node = quantity(shm["emptyDir"]["sizeLimit"])
    need = memory + num_workers * worker_memory + ray.num_workers * PROXY + node + OVERHEAD
    assert need <= quantity(sidecar(RAY)["resources"]["limits"]["memory"]) <= need * 1.25


def test_a_misspelt_field_does_not_fit_the_schema() -> None:
    job = manifests()["Job"]
    job["spec"]["template"]["spec"]["initContainers"][0]["restartpolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.29", strict=True)


def test_the_dockerfiles_pass_hadolint() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [hadolint, *(DEPLOY / f"Dockerfile{kind}" for kind in ("", ".trainer", ".ray"))],
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
    for name in (*JOBS, RAY):
        assert config(name).streams[0].name == "train"
        assert config(name).daemon.socket == config().daemon.socket


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


def sizes(name: str = BASE) -> list[int]:
    """`memory`, `num_workers` and `worker_memory` of the config, which leaves none of them out."""
    daemon, workers = config(name).daemon, config(name).workers
    found = daemon.memory, workers.num_workers, workers.worker_memory
    return [size for size in found if isinstance(size, int)]


@pytest.mark.parametrize("name", JOBS)
def test_the_memory_limit_holds_all_that_loaderd_may_take(name: str) -> None:
    memory, num_workers, worker_memory = sizes(name)
    need = memory + num_workers * worker_memory + OVERHEAD
    asked = sidecar(name)["resources"]
    assert need <= quantity(asked["limits"]["memory"]) <= need * 1.25
    assert asked["requests"]["memory"] == asked["limits"]["memory"]
    assert int(asked["requests"]["cpu"]) == num_workers


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

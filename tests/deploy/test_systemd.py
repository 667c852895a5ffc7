"""The units for systemd: it understands them, and they go with what the daemon does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loaderd.config.schema import DaemonConfig
from loaderd_testing.deadlines import DEADLINE_S

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"


def settings(name: str) -> dict[str, str]:
    lines = (FOLDER / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


@pytest.mark.needs("systemd_analyze")
def test_systemd_understands_the_units_and_finds_them_shut(tmp_path: Path) -> None:
    for source, name in (("loaderd.service", "a"), ("loaderd@.service", "loaderd@a")):
        unit = tmp_path / f"{name}.service"
        unit.write_text(
            (FOLDER / source).read_text().replace("/opt/loaderd/bin/loaderd", "/bin/true")
        )
        for command in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20"]):
            done = subprocess.run(
                ["systemd-analyze", *command, f"./{unit.name}"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert command[0] != "verify" or not done.stderr


def test_the_template_differs_in_names_alone() -> None:
    one, many = settings("loaderd.service"), settings("loaderd@.service")
    differ = {key for key in one.keys() | many.keys() if one.get(key) != many.get(key)}
    assert differ == {"Description", "ExecStart", "RuntimeDirectory"}


def test_the_service_has_time_to_drain_and_goes_on_without_a_killed_worker() -> None:
    found = settings("loaderd.service")
    assert float(found["TimeoutStopSec"]) > DaemonConfig(socket="", quarantine="").drain_s
    assert (found["Type"], found["OOMPolicy"], found["KillMode"]) == ("notify", "continue", "mixed")
    assert found["RestartPreventExitStatus"] == "2", "the exit code of a wrong config"
    # metrics are this machine's affair; sockets of trainers are files
    assert "AF_UNIX" in found["RestrictAddressFamilies"]

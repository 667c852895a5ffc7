from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from loaderd.system.ray_address import unreachable


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_who_does_not_listen_is_named_and_who_does_is_not(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = form.format(head.getsockname()[1])
        assert unreachable(address) == ""
    assert unreachable(address).startswith(f"Ray at {address} is not reachable: [Errno ")


def test_of_a_cluster_without_an_address_nothing_is_known() -> None:
    assert unreachable("auto") == ""


def test_it_needs_no_part_of_ray() -> None:
    code = "import sys, loaderd.system.ray_address; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

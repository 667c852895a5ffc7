from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from loaderd.system.ray_address import unreachable
from loaderd_testing.ports import reserved_port


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_who_does_not_listen_is_named_and_who_does_is_not(form: str) -> None:
    with reserved_port() as port:
        address = form.format(port)
        with socket.create_server(("127.0.0.1", port)):
            assert unreachable(address) == ""
        assert unreachable(address).startswith(f"Ray at {address} is not reachable: [Errno ")


def test_of_a_cluster_without_an_address_nothing_is_known() -> None:
    assert unreachable("auto") == ""


def test_it_needs_no_part_of_ray() -> None:
    code = "import sys, loaderd.system.ray_address; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

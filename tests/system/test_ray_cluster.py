"""What Ray raises, as it is told in one line."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("ray")

# as an agent of Ray sends it, of a node whose disk is full
TRACEBACK = """[Node 10.0.0.7] Traceback (most recent call last):
  File "/ray/runtime_env_agent.py", line 198, in setup_logger
    handler = self._acquire(path)
  File "/ray/runtime_env_agent.py", line 150, in _acquire
    handler = _SetupFileHandler(path)
OSError: [Errno 28] No space left on device: '/tmp/ray/setup.log'
"""


def test_a_node_that_cannot_take_the_code_is_told_with_the_cause_and_without_its_stack() -> None:
    from loaderd.system import ray_cluster

    with pytest.raises(ray_cluster.RayError) as told, ray_cluster.told_plainly():
        raise ray_cluster.exceptions.RuntimeEnvSetupError(TRACEBACK)
    assert str(told.value) == (
        "Failed to set up runtime environment. [Node 10.0.0.7] "
        "OSError: [Errno 28] No space left on device: '/tmp/ray/setup.log'"
    )

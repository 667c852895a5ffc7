"""Ray: the one file that imports it, and only processes that stand for workers elsewhere load it.

Ray owns nodes, placement, restarts and autoscaling. An actor dies with the process that made it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray import exceptions

from loaderd.system.code_folder import CannotTravel, left_behind
from loaderd.system.ray_address import unreachable
from loaderd.system.stderr import CapturedStderr

MOST_CHARACTERS = 300  # of what Ray says
LOGGED = re.compile(r"^\[[^]]*\] \S+:[0-9]+: ")  # begins a line of its log: time, process, file
STACK = "Traceback (most recent call last):"  # begins a stack of Python
NO_TOKEN = "InvalidAuthToken"  # a word of Ray's
LOOK = "look"  # the group of methods that are answered while another one runs


class RayError(Exception):
    """What is asked of Ray cannot be had; str() says why, in one line."""


def connect(address: str, folder: str) -> None:
    """Become a driver of a cluster. May wait for long.

    Args:
        address: As in the config.
        folder: Travels to whatever is started there; "" for none.

    Raises:
        RayError: It cannot be reached, or the folder cannot travel.
    """
    if why := unreachable(address):
        raise RayError(why)
    env: dict[str, Any] = {}
    if folder:
        try:
            env = {"working_dir": folder, "excludes": left_behind(folder)}
        except CannotTravel as error:
            raise RayError(str(error)) from None
    # of a client that is gone (ray://), its actors are kept for so many seconds
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "5")
    with CapturedStderr() as printed:
        try:
            ray.init(
                address,
                runtime_env=env or None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except Exception as error:  # noqa: BLE001 - Ray raises whatever it likes here
            raise RayError(refusal(address, _line(error), printed.lines())) from None


def refusal(address: str, raised: str, printed: Sequence[str]) -> str:
    """Why a cluster cannot be joined, in one line.

    Args:
        address: As in the config.
        raised: What Ray raised; that often says no more than that there was no connection.
        printed: The lines that it wrote to stderr meanwhile, which then say why.
    """
    if any(NO_TOKEN in line for line in (raised, *printed)):
        return (
            f"Ray at {address} asks for a token, and this daemon has none or another one: start "
            "the daemon with RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, where FILE is a "
            "copy of the head's ~/.ray/auth_token"
        )
    more = f"; it printed: {LOGGED.sub('', printed[-1])}" if printed else ""
    return f"Ray at {address} is not reachable: {raised}{more}"


class Actor:
    """An object of a class on another node of the cluster. It ends with this process."""

    def __init__(
        self,
        cls: type,
        resources: Mapping[str, float],
        *,
        beside: Sequence[str],
        elsewhere: bool,
    ) -> None:
        """Ask for a place for it.

        Args:
            cls: Its class, which every node can import.
            resources: What it takes of Ray's resources.
            beside: Methods that are answered while another one runs.
            elsewhere: Not on the node that this process is on.

        Raises:
            RayError: Ray does not take such resources.
        """
        own = {name: amount for name, amount in resources.items() if name not in KNOWN}
        options: dict[str, Any] = {
            KNOWN[name]: amount for name, amount in resources.items() if name in KNOWN
        }
        options.setdefault("num_cpus", 0)
        if elsewhere:
            here = ray.get_runtime_context().get_node_id()
            options["label_selector"] = {"ray.io/node-id": f"!{here}"}
        decorate: Any = ray.remote
        for name in beside:
            ray.method(concurrency_group=LOOK)(getattr(cls, name))
        made = decorate(concurrency_groups={LOOK: 1})(cls)
        try:
            self._actor = made.options(resources=own, max_restarts=0, **options).remote()
        except Exception as error:  # noqa: BLE001 - Ray raises whatever it likes here, too
            why = " ".join(" ".join(map(str, error.args)).split())
            raise RayError(
                f"Ray does not take [workers.ray] resources = {written(resources)}: "
                f"{why[:MOST_CHARACTERS]}"
            ) from None

    def ready(self) -> Future[Any]:
        """Done when it has found a place and is there."""
        return self._actor.__ray_ready__.remote().future()

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of it."""
        return getattr(self._actor, method).remote(*args).future()


def written(resources: Mapping[str, float]) -> str:
    """Resources as a config has them, such as {CPU = 1}."""
    return "{" + ", ".join(f"{name} = {amount:g}" for name, amount in resources.items()) + "}"


KNOWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """What Ray raises becomes a RayError that says it in one line."""
    try:
        yield
    except exceptions.RayTaskError as error:
        raise RayError(f"its actor failed: {_line(error.cause or error)}") from None
    except exceptions.ActorUnavailableError:
        raise RayError("its actor cannot be reached any longer") from None
    except exceptions.RayActorError as error:
        raise RayError(f"its actor is gone: {_cause(error)}") from None
    except exceptions.RayError as error:
        raise RayError(_line(error)) from None


def paths() -> list[str]:
    """Where an actor's process looks for modules, without what Ray has added for itself."""
    own = os.path.dirname(ray.__file__) + os.sep
    return [path for path in map(str, sys.path) if not path.startswith(own)]


def _cause(error: Exception) -> str:
    """The part of Ray's text that says why an actor is gone."""
    lines = [line.strip() for line in str(error).splitlines()]
    found = [line for line in lines if line.startswith("The actor")]
    text = (found or [line for line in lines if line] or [type(error).__name__])[-1]
    return re.sub(r" ?\b[0-9a-f]{16,}\b", "", text)[:MOST_CHARACTERS]


def _line(error: BaseException) -> str:
    """What it says, in one line; of a stack in it only the exception."""
    text, stack, rest = str(error).partition(STACK)
    if stack:
        ends = [line for line in rest.splitlines() if line and not line[0].isspace()]
        text = " ".join([text, *ends[-1:]])
    return " ".join(text.split())[:MOST_CHARACTERS] or type(error).__name__

"""Images made by the steps of a Dockerfile, and containers of them, without a container engine.

An image is a folder. What Docker would have from the base image is the machine's own, read-only:
/usr, Python, and the packages that this environment has, but for loaderd and torch. The lines COPY
and RUN are carried out as they stand, in namespaces as those of a container; pip finds what it is
to install already there, but for loaderd.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loaderd_testing import container_init
from loaderd_testing.deadlines import DEADLINE_S

ROOT = Path(__file__).parents[3]
VENV = "/opt/venv"
ENV = {"PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin"}
BUILD = {
    "HOME": "/root",
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "false",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
LEFT_OUT = re.compile(r"loaderd|torch|nvidia|triton|__|zz_|.*\.pth$")


@dataclass
class Image:
    """A root folder, and how a container of it is started."""

    folder: Path
    workdir: str = "/"
    uid: int = 0
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    base: list[tuple[str, str, bool]] = field(default_factory=list)

    @classmethod
    def base_image(cls, folder: Path) -> Image:
        """Python and the packages of this environment, in an otherwise empty folder."""
        made = cls(folder)
        for name in SYSTEM:
            place = Path("/", name)
            if place.is_symlink():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to(os.readlink(place))
            elif place.is_dir():
                made.base.append((str(place), str(place), False))
        for name in ("etc", "tmp", "root", "run"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if Path("/etc/ld.so.cache").exists():  # where libraries are
            shutil.copy("/etc/ld.so.cache", folder / "etc")
        own = Path(sys.base_prefix).resolve()
        if not own.is_relative_to("/usr"):
            made.base.append((str(own), str(own), False))
        packages = {Path(entry).resolve() for entry in sys.path if entry.endswith("-packages")}
        made._environment(sorted(place for place in packages if place.is_dir()))
        return made

    def _environment(self, packages: list[Path]) -> None:
        """A virtual environment with a link to each package.

        They lie where no volume of a pod does: their own folder may be below /tmp.
        """
        links = self.folder / "deps"
        links.mkdir()
        for number, place in enumerate(packages):
            there = Path("/packages", str(number))
            self.base.append((str(place), str(there), False))
            for entry in place.iterdir():
                if not LEFT_OUT.match(entry.name) and not (links / entry.name).is_symlink():
                    (links / entry.name).symlink_to(there / entry.name)
        home = self.folder / VENV[1:]
        venv.EnvBuilder(symlinks=True).create(home)
        for script in home.joinpath("bin").glob("[aA]ctivate*"):
            script.unlink()
        (site,) = home.glob("lib/python*/site-packages")
        (site / "deps.pth").write_text("/deps\n")
        pip = home / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec {VENV}/bin/python -m pip "$@"\n')
        pip.chmod(0o755)

    def argv(
        self,
        command: list[str],
        *,
        volumes: list[tuple[str, str, bool]] = [],  # noqa: B006
        env: dict[str, str] = {},  # noqa: B006
        uid: int | None = None,
        writable: bool = False,
    ) -> list[str]:
        """The command line of a container: namespaces of its own, and `command` as process 1."""
        spec = {
            "root": str(self.folder),
            "volumes": [*self.base, *volumes],
            "writable": writable,
            "uid": self.uid if uid is None else uid,
            "folder": self.workdir,
            "command": command,
            "env": ENV | env,
        }
        apart = ["--user", "--map-root-user", "--mount", "--pid", "--ipc", "--net", "--uts"]
        init = [sys.executable, "-I", container_init.__file__, json.dumps(spec)]
        return ["unshare", *apart, "--fork", "--kill-child", *init]

    def run(self, command: list[str], **options: Any) -> str:
        """What a container of its own prints, which must end well."""
        done = subprocess.run(
            self.argv(command, **options), capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(word, what follows) of each instruction."""
    text = re.sub(r"(?m)^\s*#.*\n", "", dockerfile.read_text()).replace("\\\n", " ")
    words = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word.upper(), rest) for word, rest in words]


def build(
    dockerfile: Path, folder: Path, context: Path, others: dict[str, Image] | None = None
) -> Image:
    """The image of the last stage.

    Args:
        dockerfile: Whose lines are carried out.
        folder: Where the images are made.
        context: What COPY copies from.
        others: Images that COPY --from names.
    """
    stages = dict(others or {})
    image = Image(folder)
    for word, rest in instructions(dockerfile):
        if word == "FROM":
            name = rest.split(" AS ")[1] if " AS " in rest else "last"
            image = stages[name] = Image.base_image(folder / name)
        elif word == "WORKDIR":
            image.workdir = rest
            (image.folder / rest[1:]).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            _copy(image, shlex.split(rest), context, stages)
        elif word == "RUN":
            image.run(["/bin/sh", "-c", rest], env=BUILD, writable=True, uid=0)
        elif word == "USER":
            image.uid = int(rest.split(":")[0])
        elif word == "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        elif word == "CMD":
            image.command = json.loads(rest)
        elif word == "HEALTHCHECK":
            image.healthcheck = json.loads(rest[rest.index("[") :])
        else:
            raise AssertionError(f"{dockerfile} has an instruction that is not known: {word}")
    return image


def _copy(image: Image, words: list[str], context: Path, stages: dict[str, Image]) -> None:
    if words[0].startswith("--from="):
        context = stages[words.pop(0).partition("=")[2]].folder
    *sources, target = words
    for source in sources:
        found = context / source.lstrip("/")
        place = image.folder / os.path.normpath(os.path.join(image.workdir, target)).lstrip("/")
        if found.is_dir():
            left = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
            shutil.copytree(found, place, ignore=left, dirs_exist_ok=True)
        else:
            place = place / found.name if target.endswith("/") else place
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, place)

"""Becomes the first process of a container: `python container_init.py SPEC_AS_JSON`, in the
namespaces that `unshare` has made. `containers.py` says what the specification is.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, NOATIME, NODIRATIME = 1, 2, 4, 8, 32, 1024, 2048
BIND, REC, RELATIME, ST_RELATIME = 4096, 16384, 1 << 21, 4096
DETACH, NEWUSER = 2, 0x10000000
DEVICES = ("null", "zero", "full", "random", "urandom")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    made = LIBC.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    if made:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {source or kind} at {target}: {os.strerror(code)}")


def read_only(target: str) -> None:
    """What the filesystem was mounted with may not be taken away by who is no true root."""
    found = os.statvfs(target).f_flag
    kept = found & (NOSUID | NODEV | NOEXEC | NOATIME | NODIRATIME)
    kept |= RELATIME if found & ST_RELATIME else 0
    mount("", target, flags=BIND | REMOUNT | RDONLY | kept)


def bind(source: str, target: str, *, writable: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        open(target, "x").close()
    mount(source, target, flags=BIND | REC)
    if not writable:
        read_only(target)


def enter(root: str, volumes: list[tuple[str, str, bool]], *, writable: bool) -> None:
    """Have `root` as the root folder, with volumes of (folder, place in it, writable)."""
    mount(root, root, flags=BIND | REC)
    for source, place, may_write in volumes:
        bind(source, root + place, writable=may_write)
    for place, kind, data in (("/proc", "proc", ""), ("/dev", "tmpfs", "size=1m")):
        os.makedirs(root + place, exist_ok=True)
        mount(kind, root + place, kind, NOSUID, data)
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", writable=True)
    os.makedirs(root + "/dev/shm")
    mount("tmpfs", root + "/dev/shm", "tmpfs", NOSUID | NODEV, "size=64m")
    if not writable:
        read_only(root)
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    LIBC.umount2(b".", DETACH)
    os.chdir("/")


def become(uid: int) -> None:
    """Have this uid, without a name and without any right of root's."""
    if LIBC.unshare(NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} 0 1"), ("gid_map", f"{uid} 0 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def main(spec: str) -> None:
    asked = json.loads(spec)
    enter(asked["root"], asked["volumes"], writable=asked["writable"])
    if asked["uid"]:
        become(asked["uid"])
    os.chdir(asked["folder"])
    os.execvpe(asked["command"][0], asked["command"], asked["env"])


if __name__ == "__main__":
    main(sys.argv[1])

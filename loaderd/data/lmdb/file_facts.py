"""What an LMDB file is, from its meta pages alone: whether it is whole, and which state of it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import struct
from dataclasses import dataclass, replace

from loaderd.data.errors import SourceError
from loaderd_wire.hints import nearest

MAGIC, VERSION = 0xBEEFC0DE, 1
# page header, magic, version, address, map size, free db, main db, last page, txn id
META = struct.Struct("=16x II QQ 48s IHH QQQQQ QQ")
PSIZE = struct.Struct("=I")
HEAD_BYTES = 512
LISTED = 1000  # names of a folder, one of which may have been meant
NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "ceph",
    "glusterfs",
    "beegfs",
    "gpfs",
    "9p",
    "afs",
    "virtiofs",
    "wekafs",
}
PACK_FIRST = "`loaderd pack` makes one of photos, tar shards or tables"

WRONG = (  # what else people put where a database should be
    (b"version https://git-lfs", "is a Git LFS pointer, not the data: run `git lfs pull`"),
    (b"\x1f\x8b", "is gzip-compressed: unpack it first"),
    (b"PK\x03\x04", "is a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is zstd-compressed: unpack it first"),
    (b"PAR1", "is a Parquet file, not an LMDB: make one with `loaderd pack parquet`"),
    (b"SQLite format 3", "is an SQLite database, not an LMDB"),
    (b"\x89HDF", "is an HDF5 file, not an LMDB"),
)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells one state of a database file from another.

    Attributes:
        device: Number of the device that the file lies on.
        inode: Its number there.
        size: Bytes of the file.
        last_txnid: Number of the last transaction.
        entries: Number of entries of the main database.
        page: Bytes of a page.
        pages: Number of pages that are in use.
        root: Number of the main database's first page.
        meta: A hash of both meta pages.
        mtime_ns: When it was written to, by its filesystem.
        ctime_ns: When anything about it changed, by its filesystem.
    """

    device: int
    inode: int
    size: int
    last_txnid: int
    entries: int
    page: int
    pages: int
    root: int
    meta: str
    mtime_ns: int
    ctime_ns: int

    @property
    def content(self) -> FileFacts:
        """The same without times: a file that was only touched has it, too."""
        return replace(self, mtime_ns=0, ctime_ns=0)


def data_file(path: str) -> str:
    """The file that holds the pages: `path` itself, or data.mdb in it.

    Raises:
        SourceError: There is none that can be read.
    """
    path = path.rstrip("/") or path  # a slash behind a file's name is a slip of tab completion
    file = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    try:
        os.stat(file)
    except FileNotFoundError:
        if file == path:
            link = f" (a link to {os.readlink(path)})" if os.path.islink(path) else ""
            hint = "" if link else _meant(os.path.abspath(path))
            raise SourceError(f"{path}: there is no such file or folder{link}{hint}") from None
        inside = sorted(os.listdir(path))
        seen = ", ".join(inside[:5]) + (", ..." if len(inside) > 5 else "") if inside else "nothing"
        below = [name for name in inside if _looks_like_database(os.path.join(path, name))]
        shown = f"{', '.join(below[:5])}{', ...' if len(below) > 5 else ''}"
        one = f". There are databases in it, name one: {shown}" if below else f"; {PACK_FIRST}"
        raise SourceError(
            f"{path}: the folder has no data.mdb, so it is not an LMDB; it has {seen}{one}"
        ) from None
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None
    if not os.path.isfile(file):
        raise SourceError(f"{file}: is neither a file nor a folder with an LMDB")
    return file


def _meant(path: str) -> str:
    """What a path that is not there may have meant.

    That is the same one from the working folder, or a name like it in its own folder.
    """
    parts = path.split(os.sep)
    for at in range(1, len(parts)):
        other = os.path.abspath(os.path.join(*parts[at:]))
        if os.path.exists(other):
            return f"; there is {other}: a relative path in a config begins at the config's folder"
    folder, base = os.path.split(path)
    if not os.path.isdir(folder):
        return f"; there is no folder {folder} either"
    with contextlib.suppress(OSError):
        near = nearest(base, sorted(os.listdir(folder))[:LISTED])
        return f"; did you mean {os.path.join(folder, near)}?" if near else ""
    return ""


def _looks_like_database(path: str) -> bool:
    """Whether this is a database by its name and place; it is not opened."""
    named = path.endswith(("lmdb", ".mdb")) and os.path.isfile(path)
    return named or os.path.isfile(os.path.join(path, "data.mdb"))


def _wrong(head: bytes) -> str:
    for magic, text in WRONG:
        if head.startswith(magic):
            return text
    if head[257:262] == b"ustar":
        return "is a tar archive: unpack it first, or pack shards with `loaderd pack webdataset`"
    start = head.lstrip()[:15].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "is a web page (an error page saved by a download?), not an LMDB"
    if not head.strip(b"\0"):
        return "has only zeros where its first page should be: the copy or download is not complete"
    return f"is not an LMDB: it begins with {head[:16].hex(' ')}; {PACK_FIRST}"


def _meta(page: bytes, file: str) -> tuple[int, int, int, int, int]:
    """(transaction, last page, entries, root, page size) of a meta page."""
    if len(page) < META.size:
        raise SourceError(f"{file}: is cut short: it has no whole meta page")
    _, _, _, _, free, *main, last_page, txnid = (*META.unpack_from(page),)
    return txnid, last_page, main[6], main[7], PSIZE.unpack_from(free)[0]


def read_facts(fd: int, file: str) -> FileFacts:
    """The state of an open database file, from its own meta pages and nothing else.

    Args:
        fd: The file.
        file: Its name, for errors.

    Raises:
        SourceError: It is no database, or cut short.
    """
    stat = os.fstat(fd)
    if stat.st_size == 0:
        raise SourceError(f"{file}: is empty (0 bytes)")
    head = os.pread(fd, HEAD_BYTES, 0)
    magic, version = struct.unpack_from("=II", head.ljust(24, b"\0"), 16)
    if magic != MAGIC:
        if struct.pack("=I", magic)[::-1] == struct.pack("=I", MAGIC):
            raise SourceError(
                f"{file}: was written on a machine of the other byte order; copy it with "
                "`mdb_dump` and `mdb_load`"
            )
        raise SourceError(f"{file}: {_wrong(head)}")
    if version & 0xFFFF != VERSION:
        raise SourceError(f"{file}: has LMDB data version {version}, this library reads {VERSION}")
    first = _meta(head, file)
    psize = first[-1]
    if psize < 512 or psize > 65_536 or psize & (psize - 1):
        raise SourceError(f"{file}: its meta page says pages of {psize} bytes: it is damaged")
    second = os.pread(fd, HEAD_BYTES, psize)
    if len(second) < META.size:
        raise SourceError(f"{file}: is cut short: it needs {2 * psize} bytes, has {stat.st_size}")
    newest = (
        max(first, _meta(second, file))
        if struct.unpack_from("=I", second, 16)[0] == MAGIC
        else first
    )
    txnid, last_page, entries, root, _ = newest
    needs = (last_page + 1) * psize
    if stat.st_size < needs:
        raise SourceError(
            f"{file}: is cut short: it needs {needs} bytes, has {stat.st_size}; copy or download "
            "it again"
        )
    meta = hashlib.blake2b(head[: META.size] + second[: META.size], digest_size=8).hexdigest()
    times = stat.st_mtime_ns, stat.st_ctime_ns
    return FileFacts(
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        txnid,
        entries,
        psize,
        last_page + 1,
        root,
        meta,
        *times,
    )


def _mount_type(path: str, mountinfo: str) -> str:
    """The filesystem type that a path lies on.

    Args:
        path: The path.
        mountinfo: The text of /proc/self/mountinfo.

    Returns:
        The type; "" if it is not told.
    """
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        parts = left.split(" ")
        if len(parts) < 5 or not right:
            continue
        point = (
            parts[4]
            .replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\")
        )
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ", 1)[0]
    return kind


def on_network(path: str, mountinfo: str | None = None) -> bool:
    """True if the file lies on a network filesystem, where reading ahead pays."""
    if mountinfo is None:
        return _folder_on_network(os.path.dirname(os.path.realpath(path)))
    kind = _mount_type(os.path.realpath(path), mountinfo)
    return kind in NETWORK or (
        kind.startswith("fuse.") and kind not in ("fuse.lxcfs", "fuse.fuse-overlayfs")
    )


@functools.lru_cache(maxsize=64)
def _folder_on_network(folder: str) -> bool:
    """`on_network` by what is mounted now; thousands of databases lie in few folders."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return on_network(folder, file.read())
    except OSError:
        return False


def open_file(path: str) -> tuple[int, str]:
    """Open the data file of a database for reading.

    Returns:
        A descriptor, and the file's name.

    Raises:
        SourceError: It cannot be opened.
    """
    file = data_file(path)
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC), file
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None


def is_sound(file: str) -> bool:
    """True if `file` is a database with all of its pages."""
    try:
        fd, file = open_file(file)
    except SourceError:
        return False
    try:
        read_facts(fd, file)
    except SourceError:
        return False
    finally:
        os.close(fd)
    return True

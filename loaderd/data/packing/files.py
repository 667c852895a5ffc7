"""Files that a source is made of: found, told apart, and read."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Sequence

from loaderd.data.errors import SampleFault, SourceError

MAX_FILE = 1 << 30  # bytes of a sample's file
IMAGE_ENDINGS = (
    "jpg", "jpeg", "jpe", "jfif", "png", "ppm", "pgm", "pbm", "pnm", "webp", "bmp", "tif", "tiff",
    "gif", "jp2", "avif",
)  # fmt: skip

RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
MAX_RANGE = 1_000_000


def read_file(path: str | bytes) -> bytes:
    """All of a sample's file. Raises SampleFault."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise SampleFault("read", "ValueError", "it is not a file")
            if found.st_size > MAX_FILE:
                raise SampleFault(
                    "read", "ValueError", f"the file is larger than {MAX_FILE:,} bytes"
                )
            return file.read()
    except OSError as error:
        raise SampleFault("read", type(error).__name__, error.strerror or str(error)) from None


def source_files(patterns: Sequence[str], endings: Sequence[str], what: str) -> list[str]:
    """The files that a source is said to be, sorted by name.

    Args:
        patterns: Each a file; a folder, all of whose files with these endings are meant; or a glob,
            which may have ranges such as {000..099}.
        endings: Such as (".tar",).
        what: They are, for the error.

    Raises:
        SourceError: One of them is none.
    """
    plain = [each for pattern in patterns for each in _ranges(pattern)]
    found = {file for pattern in plain for file in _files(pattern, endings, what)}
    return sorted(found)


def _ranges(pattern: str) -> list[str]:
    """The patterns that one with {000..099} stands for, as webdataset has them."""
    match = RANGE.search(pattern)
    if match is None or os.path.lexists(pattern):
        return [pattern]
    first, last = match.groups()
    if int(last) - int(first) > MAX_RANGE:
        raise SourceError(f"{pattern}: {{{first}..{last}}} are more than {MAX_RANGE:,} files")
    made = (
        f"{pattern[: match.start()]}{number:0{len(first)}}{pattern[match.end() :]}"
        for number in range(int(first), int(last) + 1)
    )
    return [each for one in made for each in _ranges(one)]


def _files(pattern: str, endings: Sequence[str], what: str) -> list[str]:
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isdir(pattern):
        found = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(pattern, onerror=_refuse)
            for name in names
            if name.lower().endswith(tuple(endings)) and not name.startswith(".")
        ]
        said = f"{pattern}: has no file that ends with {' or '.join(endings)}"
    elif os.path.lexists(pattern):
        return [pattern]
    else:
        found = glob.glob(pattern, recursive=True)
        said = f"{pattern}: there is no such file, and no file matches it as a pattern"
    files = [path for path in found if os.path.isfile(path)]
    if not files:
        raise SourceError(f"{said}; give {what}")
    return files


def _refuse(error: OSError) -> None:
    raise SourceError(f"{error.filename}: cannot be read: {error.strerror}")


def fingerprint_of(paths: Sequence[str], *said: object) -> str:
    """A hash of the files' names, sizes and times, and of what else decides about the samples.

    Raises SourceError for one that is not there.
    """
    digest = hashlib.blake2b(repr(said).encode("utf-8", "backslashreplace"), digest_size=16)
    for path in paths:
        try:
            found = os.stat(path)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from None
        name = os.fsencode(os.path.basename(path))
        digest.update(b"%b\0%d %d;" % (name, found.st_size, found.st_mtime_ns))
    return digest.hexdigest()


def common_folder(paths: Sequence[str]) -> str:
    """The folder below which all of these files lie; names of samples begin there."""
    folders = {os.path.dirname(path) for path in paths}
    return os.path.commonpath(folders)

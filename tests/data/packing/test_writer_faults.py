"""What goes wrong while packing: files that decoders choke on, targets that can't be written, what
C libraries print.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.packing.test_writer import contents, images, needs_means
from loaderd.data.errors import SourceError
from loaderd.data.images.image_error import NoMemory
from loaderd.data.lmdb import record_format
from loaderd.data.packing import part_file, stored_images, writer
from loaderd.data.packing.inputs import pack_dataset, pack_imagefolder
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import coded, picture

# -- files


@pytest.mark.parametrize(
    "error",
    [
        KeyError(6),
        MemoryError(),
        RuntimeError("no"),
        RecursionError("deep"),
        OSError(5, "Input/output error"),
    ],
)
def test_whatever_a_decoder_raises_is_that_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    source = images(tmp_path / "src")
    poison = (source / "a" / "003.png").read_bytes()

    def decode(data: bytes) -> None:
        if data == poison:
            raise error

    monkeypatch.setattr(stored_images, "decode", decode)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.samples, report.bad_count) == (5, 1)
    name, reason = report.bad[0]
    assert name == "a/003.png"
    assert type(error).__name__ in reason


def test_a_decoder_that_raises_does_not_stop_a_restart_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src", 12)
    poison = (source / "b" / "004.png").read_bytes()

    def decode(data: bytes) -> None:
        if data == poison:
            raise KeyError(6)

    monkeypatch.setattr(stored_images, "decode", decode)
    monkeypatch.setattr(writer, "BATCH_SAMPLES", 2)

    def stop(at: int, of: int) -> None:
        if at == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_imagefolder(str(source), str(tmp_path / "db"), progress=stop)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert report.resumed_at == 11  # five times two, and the bad one
    assert (report.samples, report.bad) == (11, (("b/004.png", "KeyError: 6"),))


SCARCE = """
import resource, sys, threading
from loaderd.data.packing.inputs import pack_imagefolder
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
threading.stack_size(1 << 20)
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
report = pack_imagefolder(sys.argv[1], sys.argv[2], random_access=False)
print(report.samples, [name for name, _ in report.bad], *[reason for _, reason in report.bad])
"""


def test_a_picture_that_memory_does_not_suffice_for_is_named_and_its_neighbours_are_packed(
    tmp_path: Path,
) -> None:
    source = images(tmp_path / "src", 40)
    Image.new("L", (13_000, 13_000), 100).save(source / "a" / "020.jpg", quality=10)
    done = subprocess.run(
        [sys.executable, "-c", SCARCE, str(source), str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40 ['a/020.jpg'] "), done.stdout
    assert "memory" in done.stdout.lower()


@pytest.mark.parametrize("short", [MemoryError, NoMemory])
def test_a_file_that_fails_only_beside_a_large_one_is_tried_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: type[Exception]
) -> None:
    source = images(tmp_path / "src")
    first = (source / "a" / "001.png").read_bytes()
    tried: list[bytes] = []

    def decode(data: bytes) -> None:
        if data == first:
            tried.append(data)
            if len(tried) == 1:
                raise short

    monkeypatch.setattr(stored_images, "decode", decode)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.samples, report.bad_count, len(tried)) == (6, 0, 2)


def test_a_sample_that_no_database_takes_is_that_sample_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src")
    Image.fromarray(picture(200, 200, seed=7)).save(source / "a" / "large.bmp")
    monkeypatch.setattr(writer, "MAX_VALUE", 50_000)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.samples, [name for name, _ in report.bad]) == (6, ["a/large.bmp"])
    assert "50,000" in report.bad[0][1]


def test_what_is_no_exception_of_pythons_own_is_a_bad_sample_of_a_dataset_too(
    tmp_path: Path,
) -> None:
    report = pack_dataset("loaderd_testing.sample_builders:Panics", {}, str(tmp_path / "db"))
    assert (report.samples, report.bad) == (
        2,
        (("1", "Panic: a library of another language gave up"),),
    )


# -- targets


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return images(tmp_path / "src")


IN_A_MOUNT = 'mount -t tmpfs -o {options} tmpfs "$1" && {then} && shift && exec "$@"'


def mounted(folder: Path, options: str, then: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`loaderd ARGS` with a file system of its own at `folder`."""
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    script = IN_A_MOUNT.format(options=options, then=then)
    command = [
        "unshare",
        *user,
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        str(folder),
        sys.executable,
        "-m",
        "loaderd",
        *args,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 3, done.stderr
    lines = [line for line in done.stderr.splitlines() if "rewrit" not in line]
    assert len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in words), lines
    assert "fault of loaderd" not in lines[0]


@pytest.mark.needs("userns")
@pytest.mark.parametrize("kind", ["imagefolder", "dataset"])
def test_a_target_on_a_read_only_mount_is_one_line_that_names_it(
    tmp_path: Path, source: Path, kind: str
) -> None:
    (tmp_path / "mnt").mkdir()
    what = (
        [kind, str(source)]
        if kind == "imagefolder"
        else [kind, "collections:UserList", "--args", '{"initlist": [1, 2]}']
    )
    done = mounted(
        tmp_path / "mnt",
        "size=1m",
        'mount -o remount,ro "$1"',
        "pack",
        *what,
        str(tmp_path / "mnt" / "db"),
    )
    one_line(done, str(tmp_path / "mnt"), "Read-only file system")


@pytest.mark.needs("userns")
@pytest.mark.parametrize("size", ["0k", "64k", "300k"])
def test_a_target_on_a_full_disk_is_one_line_and_exit_code_3(tmp_path: Path, size: str) -> None:
    """0k: one page, and that is taken."""
    source = tmp_path / "src"
    source.mkdir()
    for at in range(40):
        Image.fromarray(np.random.default_rng(at).integers(0, 256, (64, 64, 3), np.uint8)).save(
            source / f"{at:02d}.png"
        )
    (tmp_path / "mnt").mkdir()
    fill = 'head -c 4096 /dev/zero >"$1/fill"' if size == "0k" else "true"
    options = f"size={'4k' if size == '0k' else size}"
    done = mounted(
        tmp_path / "mnt",
        options,
        fill,
        "pack",
        "imagefolder",
        str(source),
        str(tmp_path / "mnt" / "db"),
    )
    one_line(done, str(tmp_path / "mnt"), "no space left on the disk")


@pytest.mark.needs("second_uid")
@pytest.mark.parametrize("whose", ["folder", "part"])
def test_a_target_of_another_owner_is_one_line_that_names_it(
    tmp_path: Path, source: Path, whose: str
) -> None:
    target = tmp_path / "out" / "db"
    target.parent.mkdir()
    if whose == "part":
        target.parent.chmod(0o777)
        (tmp_path / "out" / "db.part").write_bytes(b"")
        (tmp_path / "out" / "db.part").chmod(0o600)
    code = (
        "import os, sys\nfrom loaderd.__main__ import main\n"
        # so that all is imported: the other user may not be allowed to read it
        "main([*sys.argv[1:4], sys.argv[4] + '-before'])\n"
        "os.setgroups([]); os.setresgid(4321, 4321, 4321); os.setresuid(4321, 4321, "
        "4321)\nsys.exit(main(sys.argv[1:]))"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    command = [sys.executable, "-c", code, "pack", "imagefolder", str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    one_line(done, str(target.parent), "Permission denied")


def fails(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    code: int,
    when: Callable[..., bool] = lambda *_: True,
) -> None:
    real = getattr(module, name)

    def call(*args: object, **kwargs: object) -> object:
        if when(*args):
            raise OSError(code, os.strerror(code), args[0] if isinstance(args[0], str) else None)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, call)


def is_file(fd: object, *_: object) -> bool:
    return isinstance(fd, int) and stat.S_ISREG(os.fstat(fd).st_mode)


def test_a_database_that_the_disk_has_not_taken_is_not_put_in_the_targets_place(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        fails(broken, os, "fsync", errno.EIO, is_file)
        with pytest.raises(SourceError, match=r"db\.part: cannot be written: Input/output error"):
            pack_imagefolder(str(source), str(tmp_path / "db"))
    assert not (tmp_path / "db").exists()
    assert pack_imagefolder(str(source), str(tmp_path / "db")).samples == 6


def test_a_folder_that_cannot_be_synced_is_told_with_what_it_means(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, os, "fsync", errno.EIO, lambda fd: not is_file(fd))
    with pytest.raises(
        SourceError,
        match=r"db: is complete, but may lose its name if the machine crashes: Input/output error",
    ):
        pack_imagefolder(str(source), str(tmp_path / "db"))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_does_not_sync_folders_is_no_fault(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fails(monkeypatch, os, "fsync", code, lambda fd: not is_file(fd))
    assert pack_imagefolder(str(source), str(tmp_path / "db")).samples == 6


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("rename", errno.EACCES, "cannot be written: Permission denied"),
        ("rename", errno.ENOSPC, "no space left on the disk"),
        ("truncate", errno.EROFS, "cannot be written: Read-only file system"),
    ],
)
def test_whatever_fails_between_the_lock_and_the_name_is_one_line(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, words: str
) -> None:
    if name == "truncate":
        (tmp_path / "db.part").write_bytes(b"garbage" * 1000)
    fails(monkeypatch, os, name, code)
    with pytest.raises(SourceError, match=words) as caught:
        pack_imagefolder(str(source), str(tmp_path / "db"))
    assert str(tmp_path / "db") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EROFS])
def test_a_target_that_cannot_be_locked_is_one_line(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fails(monkeypatch, part_file.fcntl, "flock", code)
    with pytest.raises(SourceError, match=f"db.part: cannot be written: {os.strerror(code)}"):
        pack_imagefolder(str(source), str(tmp_path / "db"))


def test_a_file_that_takes_the_targets_name_meanwhile_is_not_overwritten(
    tmp_path: Path, source: Path
) -> None:
    def progress(at: int, of: int) -> None:
        (tmp_path / "db").write_text("precious")

    with pytest.raises(SourceError, match="already exists"):
        pack_imagefolder(str(source), str(tmp_path / "db"), progress=progress)
    assert (tmp_path / "db").read_text() == "precious"


def test_a_part_whose_pages_are_damaged_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src", 12)
    monkeypatch.setattr(writer, "BATCH_SAMPLES", 2)

    def stop(at: int, of: int) -> None:
        if at == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_imagefolder(str(source), str(tmp_path / "db"), progress=stop)
    part = tmp_path / "db.part"
    with part.open("r+b") as file:  # its two meta pages are sound
        file.seek(8192)
        file.write(b"\xff" * (part.stat().st_size - 8192))
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.restarted, report.samples) == (True, 12)


# -- what libraries print


def with_bad_profile(png: bytes) -> bytes:
    """The same picture with a colour profile that libpng complains of, as many editors write them."""
    body = b"iCCP" + b"icc\0\0" + zlib.compress(bytes(200))
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return png[:33] + chunk + png[33:]


def test_what_a_c_library_prints_comes_once_with_the_files_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = images(tmp_path / "src", 12)
    for name in ("a/005.png", "a/007.png", "b/002.png"):
        (source / name).write_bytes(with_bad_profile((source / name).read_bytes()))
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert capfd.readouterr().err == ""
    (note,) = [note for note in report.notes if "libpng" in note]
    assert note == "a/005.png: libpng warning: iCCP: too short (3 such lines in total)"


def test_what_is_printed_of_a_bad_file_comes_with_its_name_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = images(tmp_path / "src", 12)
    data = bytearray((source / "b" / "006.png").read_bytes())
    data[data.index(b"IDAT") + 500] ^= 255
    (source / "b" / "006.png").write_bytes(data)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert [name for name, _ in report.bad] == ["b/006.png"]
    assert capfd.readouterr().err == ""
    assert any(note.startswith("b/006.png: libpng error: ") for note in report.notes), report.notes


def test_lines_that_differ_in_numbers_only_are_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src", 12)

    def decode(data: bytes) -> None:
        os.write(
            2,
            b"Corrupt JPEG data: %d extraneous bytes before marker 0x%02x\n"
            % (len(data), len(data) % 256),
        )

    monkeypatch.setattr(stored_images, "decode", decode)
    (note,) = pack_imagefolder(str(source), str(tmp_path / "db")).notes
    assert note.startswith("a/001.png: Corrupt JPEG data: ")
    assert note.endswith("(12 such lines in total)")


def test_a_library_that_prints_without_end_takes_no_memory_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src")

    def decode(data: bytes) -> None:
        with open(2, "wb", buffering=0, closefd=False) as out:
            for _ in range(64):
                out.write(b"x" * (1 << 20))

    monkeypatch.setattr(stored_images, "decode", decode)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert report.samples == 6
    assert sum(map(len, report.notes)) < 500


def test_standard_error_is_what_it_was_before(
    tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = os.fstat(2).st_ino, sys.stderr
    pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (os.fstat(2).st_ino, sys.stderr) == before
    os.write(2, b"still there\n")
    assert capfd.readouterr().err == "still there\n"


def test_without_a_standard_error_packing_goes_on(tmp_path: Path, source: Path) -> None:
    code = (
        "import os, sys; os.close(2); from loaderd.data.packing.inputs import "
        "pack_imagefolder; print(pack_imagefolder(*sys.argv[1:]).samples)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path / "db")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout == "6\n"


@needs_means
def test_a_file_that_is_no_good_for_random_access_keeps_its_bytes_whatever_the_rewriting_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src", kind="jpg")

    def rewrite(data: bytes) -> bytes:
        raise KeyError(6)

    monkeypatch.setattr(stored_images, "rewrite", rewrite)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.samples, report.bad_count) == (6, 0)
    assert dict(report.tally) == {"kept as they are: KeyError": 6}
    assert any(
        coded(picture(seed=1), "JPEG") in value for value in contents(tmp_path / "db").values()
    )


def test_more_classes_than_a_database_takes_are_refused_before_any_work(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_format, "MAX_CLASSES", 1)
    with pytest.raises(SourceError, match="2 classes; a database takes 1"):
        pack_imagefolder(str(source), str(tmp_path / "db"))
    assert sorted(os.listdir(tmp_path)) == ["src"]

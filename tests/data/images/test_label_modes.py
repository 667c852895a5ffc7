"""Images whose numbers are labels keep them: decoded, resized, cropped together with their
pictures, and never taken for colours unsaid.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault
from loaderd.data.images.decode import decode, label_mode
from loaderd.data.images.image_error import ImageError
from loaderd.data.images.label_numbers import stored_numbers
from loaderd.data.pipeline.label_notes import label_notes
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing import sample_builders
from loaderd_testing.sample_builders import (
    by_pillow,
    call,
    coded,
    dataset_plan,
    op,
    picture,
    silent,
    write_own,
)

LABELS = np.array([[0, 1, 2, 255], [255, 2, 1, 0], [7, 7, 7, 7]], np.uint8)
INDEX = op("decode", field="mask", mode="index")


def palette(labels: np.ndarray = LABELS) -> Image.Image:
    image = Image.fromarray(labels, "L").convert("L")
    image.putpalette(
        [n for entry in range(256) for n in (entry * 37 % 256, entry * 91 % 256, entry * 13 % 256)]
    )
    assert image.mode == "P"
    return image


def regions(height: int, width: int, count: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.choice([0, 1, 2, 5, 200, 255], (height // count + 1, width // count + 1))
        .repeat(count, 0)
        .repeat(count, 1)[:height, :width]
        .astype(np.uint8)
    )


def made(value: Any, *transforms: Any, index: int = 0, epoch: int = 0, **plan: Any) -> Sample:
    """What becomes of the sample `value` of a dataset."""
    sample_builders.HELD[:] = [value] * (index + 1)
    with Source(dataset_plan("Holding", transforms=transforms, **plan)) as source:
        return SamplePipeline(source.plan, source).make(SampleRequest(0, epoch, index), silent)


def stored(tmp_path: Path, sample: Sample, *transforms: Any, index: int = 0, **plan: Any) -> Sample:
    """What becomes of a stored sample, at one of several indices."""
    path = tmp_path / f"db{index}"
    write_own(path, [sample] * (index + 1))
    with Source(StreamConfig("t", lmdb=str(path), transforms=transforms, **plan)) as source:
        found = SamplePipeline(source.plan, source).make(SampleRequest(0, 0, index), silent)
        # the file's own pages go with the source
        return Sample({name: np.array(value) for name, value in found.items()})


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF"])
def test_a_palette_image_keeps_its_numbers(kind: str) -> None:
    data = coded(palette(), kind)
    with Image.open(io.BytesIO(data)) as image:
        numbers = np.asarray(image)
    # GIF is written with numbers of its own
    assert kind == "GIF" or np.array_equal(numbers, LABELS)
    np.testing.assert_array_equal(decode(data, "index")[:, :, 0], numbers)
    np.testing.assert_array_equal(decode(data), by_pillow(data))
    assert label_mode(data) == "P"


def test_gray_one_bit_and_sixteen_bit_images_keep_their_numbers() -> None:
    wide = LABELS.astype(np.uint16) * 257
    for image, wanted in (
        (Image.fromarray(LABELS), LABELS),
        (Image.fromarray(LABELS > 1), (LABELS > 1).astype(np.uint8)),
        (Image.fromarray(wide), wide),
    ):
        found = decode(coded(image, "PNG"), "index")
        assert (found.dtype, found.shape) == (wanted.dtype, (3, 4, 1))
        np.testing.assert_array_equal(found[:, :, 0], wanted)
    smooth = Image.fromarray(np.full((16, 16), 77, np.uint8))
    np.testing.assert_array_equal(decode(coded(smooth, "JPEG"), "index"), np.full((16, 16, 1), 77))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_palettes_and_gray_of_a_few_bits_keep_their_numbers(bits: int) -> None:
    numbers = np.arange(16, dtype=np.uint8).reshape(4, 4) % (1 << bits)
    np.testing.assert_array_equal(
        decode(coded(palette(numbers), "PNG", bits=bits), "index")[:, :, 0], numbers
    )
    width = -(-4 * bits // 8)
    rows = b"".join(
        b"\0"
        + (int("".join(f"{n:0{bits}b}" for n in row), 2) << (8 * width - 4 * bits)).to_bytes(
            width, "big"
        )
        for row in numbers.tolist()
    )
    np.testing.assert_array_equal(decode(png(bits, rows), "index")[:, :, 0], numbers)


def png(bits: int, rows: bytes, width: int = 4, height: int = 4) -> bytes:
    """A gray PNG."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("stored", "kind"),
    [("RGB", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("CMYK", "JPEG")],
)
def test_an_image_of_colours_has_no_numbers_to_keep(stored: str, kind: str) -> None:
    with pytest.raises(ImageError, match=r"'(RGB|RGBA|LA|CMYK)'.*rgb"):
        decode(coded(Image.fromarray(picture()).convert(stored), kind), "index")


def test_a_palette_with_transparency_becomes_the_colours_that_pillow_makes() -> None:
    data = coded(palette(), "PNG", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(decode(data), by_pillow(data))


@pytest.mark.parametrize(
    "image",
    [palette(), Image.fromarray(LABELS > 1), Image.fromarray(LABELS.astype(np.uint16))],
    ids=lambda image: image.mode,
)
def test_a_pillow_image_of_labels_is_a_bad_sample_that_names_both_ways_out(
    image: Image.Image,
) -> None:
    for mode in ("rgb", "gray"):
        with pytest.raises(SampleFault) as caught:
            made({"mask": image}, mode=mode)
        assert 'field = "mask", mode = "index"' in caught.value.message
        assert 'convert("RGB")' in caught.value.message
    numbers = np.asarray(image).astype(np.uint16 if image.mode == "I;16" else np.uint8)
    for sample in (made({"mask": image}, mode="index"), made({"mask": image}, INDEX)):
        np.testing.assert_array_equal(sample["mask"][:, :, 0], numbers)
        assert sample["mask"].dtype == numbers.dtype


def test_colours_are_made_of_a_pillow_palette_where_the_config_says_so() -> None:
    sample = made({"mask": palette()}, op("decode", field="mask", mode="rgb"))
    np.testing.assert_array_equal(sample["mask"], np.asarray(palette().convert("RGB")))


def test_a_call_that_returns_a_palette_image_is_told_the_same() -> None:
    with pytest.raises(SampleFault, match="may be labels"):
        made({"mask": LABELS}, call("palettes"))


def test_one_stream_has_fields_of_several_modes(tmp_path: Path) -> None:
    sample = Sample(
        {"image": coded(picture(), "JPEG"), "mask": coded(palette(), "PNG")},
        encoded=("image", "mask"),
    )
    found = stored(tmp_path, sample, INDEX)
    assert found["image"].shape == (40, 50, 3)
    np.testing.assert_array_equal(found["mask"][:, :, 0], LABELS)


PAIR = ["image", "mask"]
RANDOM = [
    (op("random_crop", size=20, fields=PAIR),),
    (op("random_crop", size=[50, 44], padding=9, fields=PAIR), op("hflip", fields=PAIR)),
    (
        op("hflip", fields=PAIR),
        op("random_crop", size=17, fields=PAIR),
        op("hflip", fields=PAIR),
        op("center_crop", size=30, fields=PAIR),
    ),
]


@pytest.mark.parametrize(
    "transforms", RANDOM, ids=lambda steps: "-".join(step.op for step in steps)
)
def test_fields_of_one_op_get_one_geometry(transforms: tuple[Any, ...], tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 256, (40, 50), np.uint8)
    image = coded(np.repeat(labels[:, :, np.newaxis], 3, 2), "PNG")
    masks = {
        "palette": coded(palette(labels), "PNG"),
        "array": labels.astype(np.int64),
        "small": labels[:, :, np.newaxis],
    }
    places = set()
    found: dict[str, np.ndarray] = {}
    for index in range(8):
        for kind, mask in masks.items():
            encoded = ("image", "mask") if kind == "palette" else ("image",)
            steps = (*([INDEX] if kind == "palette" else []), *transforms)
            folder = tmp_path / f"{kind}{index}"
            folder.mkdir()
            found = stored(
                folder, Sample({"image": image, "mask": mask}, encoded=encoded), *steps, index=index
            )
            mask = found["mask"] if found["mask"].ndim == 2 else found["mask"][:, :, 0]
            np.testing.assert_array_equal(mask, found["image"][:, :, 0])
            if kind != "palette":
                assert found["mask"].dtype == masks[kind].dtype
        places.add(found["image"].tobytes())
    assert len(places) > 3


@pytest.mark.parametrize("size", [24, [31, 17], 90])
def test_labels_are_resized_by_nearest_with_the_box_of_their_picture(
    size: Any, tmp_path: Path
) -> None:
    labels = regions(120, 97)
    image = coded(picture(120, 97), "JPEG")
    for kind, mask in (
        ("index", coded(palette(labels), "PNG")),
        ("array", labels),
        ("small", labels[:, :, np.newaxis]),
        ("wide", labels.astype(np.uint16)),
        ("bool", labels > 2),
    ):
        sample = Sample(
            {"image": image, "mask": mask},
            encoded=("image", "mask") if kind == "index" else ("image",),
        )
        steps = [INDEX] if kind == "index" else []
        found = stored(tmp_path, sample, *steps, op("resize", size=size, fields=PAIR))["mask"]
        height, width = found.shape[:2]
        wanted = np.asarray(
            Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST)
        )
        if kind == "bool":
            wanted = wanted > 2
        # a centre that lies on an edge may fall to either side
        assert (np.squeeze(found) != wanted).mean() < 0.02
        assert set(np.unique(found)) <= set(np.unique(labels > 2 if kind == "bool" else labels))
        for path in tmp_path.glob("db*"):
            path.unlink()


def test_a_random_part_of_labels_holds_labels_that_lie_under_the_picture(tmp_path: Path) -> None:
    """Where image and mask show the same two halves, they still do after any crop, to a pixel."""
    labels = np.zeros((200, 300), np.uint8)
    labels[:, 150:] = 9
    image = np.repeat(((labels > 0) * 255)[:, :, np.newaxis], 3, 2).astype(np.uint8)
    sample = Sample({"image": coded(image, "PNG"), "mask": labels}, encoded=("image",))
    steps = (op("random_resized_crop", size=64, fields=PAIR), op("hflip", fields=PAIR))
    split = 0
    for index in range(12):
        found = stored(tmp_path, sample, *steps, index=index)
        white = found["image"][:, :, 0].astype(int)
        assert set(np.unique(found["mask"])) <= {0, 9}
        sure = (white < 8) | (white > 247)
        np.testing.assert_array_equal((found["mask"] == 9)[sure], (white > 127)[sure])
        assert sure.mean() > 0.9
        split += 0 < (white > 127).mean() < 1
    assert split > 3


@pytest.mark.parametrize(("height", "width"), [(20, 25), (40, 25), (20, 50), (50, 40)])
def test_fields_whose_sizes_differ_are_a_bad_sample_that_names_both(
    height: int, width: int, tmp_path: Path
) -> None:
    sample = Sample(
        {"image": coded(picture(40, 50), "PNG"), "mask": np.zeros((height, width), np.int64)},
        encoded=("image",),
    )
    with pytest.raises(SampleFault, match=rf"'image' is 40 x 50 .*'mask' {height} x {width}"):
        stored(tmp_path, sample, op("random_crop", size=16, fields=PAIR))


def test_a_gray_picture_beside_a_mask_is_still_a_picture(tmp_path: Path) -> None:
    gray = picture()[:, :, :1]
    sample = Sample(
        {"image": coded(gray[:, :, 0], "PNG"), "mask": regions(40, 50)}, encoded=("image",)
    )
    found = stored(tmp_path, sample, op("resize", size=[20, 25], fields=PAIR), mode="gray")
    wanted = stored(
        tmp_path,
        Sample({"image": sample["image"]}, encoded=("image",)),
        op("resize", size=[20, 25]),
        mode="gray",
        index=1,
    )
    np.testing.assert_array_equal(found["image"], wanted["image"])


def test_an_array_said_to_be_an_index_image_is_resized_by_nearest(tmp_path: Path) -> None:
    sample = Sample({"mask": regions(40, 50)[:, :, np.newaxis]})
    found = stored(tmp_path, sample, INDEX, op("resize", size=[21, 33], field="mask"))
    assert set(np.unique(found["mask"])) <= set(np.unique(sample["mask"]))
    assert found["mask"].shape == (21, 33, 1)


def test_an_image_file_opened_late_by_a_dataset_is_an_index_image() -> None:
    opened = Image.open(io.BytesIO(coded(palette(), "PNG")))
    np.testing.assert_array_equal(
        made((opened, 1), op("decode", field="0", mode="index"))["0"][:, :, 0], LABELS
    )


def test_a_gray_jpeg_of_labels_is_an_index_image_in_a_recipe(tmp_path: Path) -> None:
    flat = np.full((40, 48), 77, np.uint8)
    flat[:, 24:] = 200  # on the border of blocks: the codec leaves them as they are
    sample = Sample(
        {"image": coded(picture(40, 48), "JPEG"), "mask": coded(flat, "JPEG", quality=100)},
        encoded=("image", "mask"),
    )
    found = stored(tmp_path, sample, INDEX, op("resize", size=[21, 31], fields=PAIR))
    assert found["mask"].shape == (21, 31, 1)
    assert set(np.unique(found["mask"])) == {77, 200}


def test_a_gray_pillow_mask_beside_its_picture_is_not_taken_for_one_unsaid() -> None:
    value = {"image": Image.fromarray(picture(40, 50)), "mask": Image.fromarray(regions(40, 50))}
    with pytest.raises(SampleFault, match="'mask' is a Pillow image of mode 'L'"):
        made(value, op("resize", size=20, fields=PAIR))
    assert set(
        np.unique(made(value, INDEX, op("resize", size=[21, 31], fields=PAIR))["mask"])
    ) <= set(np.unique(regions(40, 50)))
    said = made(value, op("decode", field="mask", mode="rgb"), op("resize", size=20, fields=PAIR))
    assert said["mask"].shape == (20, 25, 3)
    # by itself it may be any gray picture
    assert made({"mask": value["mask"]})["mask"].shape == (40, 50, 3)


def test_gray_stored_masks_beside_their_pictures_are_told_of(tmp_path: Path) -> None:
    path = tmp_path / "db"
    write_own(
        path,
        [
            Sample(
                {"image": coded(picture(), "JPEG"), "mask": coded(regions(40, 50), "PNG")},
                encoded=("image", "mask"),
            )
        ],
    )
    for transforms, told in (
        ((op("hflip", fields=PAIR),), True),
        ((INDEX, op("hflip", fields=PAIR)), False),
        ((op("hflip", field="image"),), False),
    ):
        with Source(StreamConfig("t", lmdb=str(path), transforms=transforms)) as source:
            notes = label_notes(source.plan, source, [0])
        assert [('field = "mask", mode = "index"' in note) for note in notes] == [True] * told


def test_an_array_said_to_be_gray_is_a_picture_beside_others_too(tmp_path: Path) -> None:
    gray = picture(40, 50)[:, :, 0]
    sample = Sample({"image": coded(picture(40, 50), "PNG"), "mask": gray}, encoded=("image",))
    found = stored(
        tmp_path,
        sample,
        op("decode", field="mask", mode="gray"),
        op("resize", size=[20, 25], fields=PAIR),
    )["mask"]
    nearest = np.asarray(Image.fromarray(gray).resize((25, 20), Image.Resampling.NEAREST))
    smooth = np.asarray(Image.fromarray(gray).resize((25, 20), Image.Resampling.BILINEAR))
    assert (
        np.abs(found.astype(int) - smooth).mean() < np.abs(nearest.astype(int) - smooth).mean() / 2
    )


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_a_stored_picture_of_one_channel_is_one_by_itself_and_in_a_gray_stream(
    mode: str, tmp_path: Path
) -> None:
    sample = Sample({"image": picture()[:, :, :1]}, images=("image",))
    alone = stored(tmp_path, sample, op("resize", size=[20, 25], field="image"), mode=mode)["image"]
    np.testing.assert_array_equal(
        stored(tmp_path, sample, op("resize", size=[20, 25], fields=["image"]), mode=mode, index=1)[
            "image"
        ],
        alone,
    )
    both = Sample({**sample, "mask": regions(40, 50)}, images=("image",))
    found = stored(tmp_path, both, op("resize", size=[20, 25], fields=PAIR), mode=mode, index=2)[
        "image"
    ]
    assert np.array_equal(found, alone) == (mode == "gray")


def test_whole_numbers_wider_than_a_byte_are_labels_wherever_they_are(tmp_path: Path) -> None:
    sample = Sample({"mask": regions(40, 50)[:, :, np.newaxis].astype(np.int64) * 1000})
    found = stored(tmp_path, sample, op("resize", size=[21, 33], field="mask"))["mask"]
    assert found.shape == (21, 33, 1)
    assert set(np.unique(found)) <= set(np.unique(sample["mask"]))


def test_the_first_decode_op_of_a_field_says_its_mode(tmp_path: Path) -> None:
    sample = Sample({"mask": coded(palette(), "PNG")}, encoded=("mask",))
    assert stored(tmp_path, sample, INDEX, op("decode", field="mask", mode="rgb"))[
        "mask"
    ].shape == (3, 4, 1)


def packed(numbers: list[int], bits: int) -> bytes:
    text = "".join(f"{n:0{bits}b}" for n in numbers)
    return bytes(int(text[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(text), 8))


def pnm(magic: str, top: int, numbers: list[int]) -> bytes:
    head = f"{magic} 8 1 {top}\n".encode()
    return head + (
        " ".join(map(str, numbers)).encode()
        if magic == "P2"
        else np.array(numbers, ">u2" if top > 255 else "u1").tobytes()
    )


def tiff(bits: int, white: bool, body: bytes, sample: int = 1) -> bytes:
    tags = [
        (256, 8),
        (257, 1),
        (258, bits),
        (259, 1),
        (262, int(not white)),
        (273, 8),
        (277, 1),
        (278, 1),
        (279, len(body)),
        (339, sample),
    ]
    body += b"\0" * (len(body) % 2)
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags)
    return (
        b"II*\0"
        + struct.pack("<I", 8 + len(body))
        + body
        + struct.pack("<H", len(tags))
        + entries
        + bytes(4)
    )


def sun(bits: int, numbers: list[int]) -> bytes:
    body = packed(numbers, bits)
    return struct.pack(">8I", 0x59A66A95, 8, 1, bits, len(body), 1, 0, 0) + body


def bmp(bits: int, numbers: list[int]) -> bytes:
    """With the gray palette that Pillow takes for no palette."""
    colours = 1 << bits
    body, values = packed(numbers, bits), [0, 255] if bits == 1 else range(colours)
    offset = 54 + 4 * colours
    head = (
        b"BM"
        + struct.pack("<IHHI", offset + 8, 0, 0, offset)
        + struct.pack("<IiiHHIIiiII", 40, 8, 1, 1, bits, 0, 8, 0, 0, colours, 0)
    )
    return head + b"".join(bytes([n, n, n, 0]) for n in values) + body.ljust(8, b"\0")


def sgi(size: int, numbers: list[int]) -> bytes:
    head = struct.pack(">HBBHHHH", 474, 0, size, 2, 8, 1, 1)
    return head.ljust(512, b"\0") + np.array(numbers, f">u{size}").tobytes()


def few(bits: int) -> list[int]:
    return [n % min(4, 1 << bits) for n in (0, 1, 2, 3, 1, 0, 0, 3)]


def of_every_depth() -> dict[str, tuple[bytes, list[int]]]:
    """Files made here, of all depths that a format has, which hold small numbers; the numbers."""
    found: dict[str, tuple[bytes, list[int]]] = {"pbm": (b"P4 8 1\n" + packed(few(1), 1), few(1))}
    found["plain pbm"] = (b"P1 8 1\n" + " ".join(map(str, few(1))).encode(), few(1))
    for top in (1, 3, 7, 15, 100, 254, 255, 256, 1000, 65534, 65535):
        for magic in ("P2", "P5"):
            numbers = [min(n, top) for n in few(8)]
            found[f"{magic} {top}"] = (pnm(magic, top, numbers), numbers)
    found["P5 above its maximum"] = (
        pnm("P5", 3, [0, 1, 2, 3, 255, 0, 0, 0]),
        [0, 1, 2, 3, 255, 0, 0, 0],
    )
    for bits in (1, 2, 4, 8, 12, 16):
        for white in (False, True):
            body = np.array(few(16), "<u2").tobytes() if bits == 16 else packed(few(bits), bits)
            found[f"tiff {bits} {'white' if white else 'black'}"] = (
                tiff(bits, white, body),
                few(bits),
            )
    found["tiff signed"] = (
        tiff(8, False, np.array([0, 1, -1, -1, 0, 0, 0, 0], "i1").tobytes(), 2),
        [0, 1, -1, -1, 0, 0, 0, 0],
    )
    for bits in (1, 2, 4, 8, 16):
        body = np.array(few(16), ">u2").tobytes() if bits == 16 else packed(few(bits), bits)
        found[f"png {bits}"] = (png(bits, b"\0" + body, 8, 1), few(bits))
    found |= {f"sun {bits}": (sun(bits, few(bits)), few(bits)) for bits in (1, 4, 8)}
    found |= {f"bmp {bits}": (bmp(bits, few(bits)), few(bits)) for bits in (1, 4, 8)}
    return found | {f"sgi {size}": (sgi(size, few(8)), few(8)) for size in (1, 2)}


def of_every_format() -> dict[str, tuple[bytes, list[int]]]:
    """The same as Pillow writes them, of all formats and modes."""
    found: dict[str, tuple[bytes, list[int]]] = {}
    gray = np.array([few(8)], np.uint8)
    for kind in (
        "PNG",
        "GIF",
        "BMP",
        "DIB",
        "TIFF",
        "PPM",
        "PCX",
        "SGI",
        "ICO",
        "DDS",
        "JPEG2000",
        "XBM",
        "TGA",
    ):
        for image in (
            Image.fromarray(gray),
            palette(gray),
            Image.fromarray(gray > 0),
            Image.fromarray(gray.astype(np.uint16)),
        ):
            try:
                data = coded(image, kind)
            except (OSError, ValueError):
                continue  # the format has no such images
            if kind == "GIF" and image.mode != "L":
                continue  # it is written with numbers of its own
            zero = kind == "PPM"  # its 1 is black
            found[f"{kind} {image.mode}"] = (
                data,
                [int((n > 0) != zero) for n in few(8)] if image.mode == "1" else few(8),
            )
    return found


EVERY_DEPTH = of_every_depth() | of_every_format()
# Of these nobody can know the numbers, or Pillow does not read them; all others are exact.
REFUSED = ("P5 above", "tiff 12", "tiff signed", "bmp 4", "sgi 2", "ICO L", "ICO P", "ICO I", "TGA")


@pytest.mark.parametrize("name", EVERY_DEPTH)
def test_numbers_of_an_index_image_are_those_of_its_file_or_refused(
    name: str, tmp_path: Path
) -> None:
    for how in (
        "bytes",
        "stored",
        "opened",
        "opened again",
        "loaded from a path",
        "loaded from memory",
    ):
        folder = tmp_path / how
        folder.mkdir()
        kept_or_refused(name, how, folder)


def kept_or_refused(name: str, how: str, tmp_path: Path) -> None:
    data, numbers = EVERY_DEPTH[name]
    (tmp_path / "mask").write_bytes(data)
    if (how, name) == ("loaded from memory", "bmp 4"):
        return  # Pillow reads such a file wrongly, and nothing of the image says so
    try:
        if how == "bytes":
            found = decode(data, "index")
        elif how == "stored":
            found = stored(tmp_path, Sample({"mask": data}, encoded=("mask",)), INDEX)["mask"]
        else:
            with Image.open(
                io.BytesIO(data) if how == "loaded from memory" else tmp_path / "mask"
            ) as image:
                if how == "opened again":
                    np.testing.assert_array_equal(
                        made({"mask": image}, INDEX)["mask"].reshape(-1), numbers
                    )
                elif how.startswith("loaded"):
                    image.load()
                found = made({"mask": image}, INDEX)["mask"]
    except (ImageError, SampleFault, UnidentifiedImageError) as error:
        said = str(error)
        assert "numbers" in said or "not an image" in said or "cannot identify" in said, how
        assert how not in ("bytes", "stored") or name.startswith(REFUSED), how
    else:
        assert found.reshape(-1).tolist() == numbers, how


@pytest.mark.parametrize(("depth", "exact"), [(7, True), (3, False), (8, False), (0x87, False)])
def test_a_jpeg_2000_whose_numbers_pillow_would_stretch_is_refused(depth: int, exact: bool) -> None:
    data = bytearray(coded(Image.fromarray(LABELS), "JPEG2000"))
    at = data.index(b"\xff\x4f\xff\x51") + 42  # of the first component: its bits - 1, and a sign
    assert data[at] == 7
    data[at] = depth
    image = Image.open(io.BytesIO(data))
    if exact:
        np.testing.assert_array_equal(stored_numbers(image)[:, :, 0], LABELS)
    else:
        with pytest.raises(ImageError, match="Pillow changes numbers of this bit depth"):
            stored_numbers(image)


def test_a_gray_pillow_image_of_eight_bits_is_an_index_image_though_it_was_loaded() -> None:
    image = Image.open(io.BytesIO(coded(Image.fromarray(LABELS), "PNG")))
    image.load()
    for value in (image, image.copy(), Image.fromarray(LABELS)):
        np.testing.assert_array_equal(made({"mask": value}, INDEX)["mask"][:, :, 0], LABELS)


def test_a_loaded_pillow_image_whose_bits_nobody_knows_names_the_ways_out() -> None:
    image = Image.open(io.BytesIO(EVERY_DEPTH["png 4"][0]))
    image.load()
    with pytest.raises(
        SampleFault, match=r"PNG image as they are stored.*loaded already.*numpy\.asarray"
    ):
        made({"mask": image}, INDEX)


@pytest.mark.parametrize(
    ("mode", "plain", "gray"), [("P", "P", "P"), ("1", "1", "1"), ("L", "", "L")]
)
def test_a_gray_image_holds_labels_only_where_it_is_asked_for(
    mode: str, plain: str, gray: str
) -> None:
    image = palette() if mode == "P" else Image.fromarray(LABELS).convert(mode)
    data = coded(image, "PNG")
    assert (label_mode(data), label_mode(data, gray=True)) == (plain, gray)

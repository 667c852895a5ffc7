"""What is done with the samples of any kind: chosen, shuffled, their images made smaller."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaderd.core.order import Order
from loaderd.data.errors import SourceError
from loaderd.data.jpeg import tiles
from loaderd.data.packing import item_samples, writer
from loaderd.data.packing.selection import Selection
from loaderd.data.packing.spool import Spool
from loaderd.data.packing.stored_images import StoredImages
from loaderd_testing.packing import SOURCES, Packed
from loaderd_testing.sample_builders import by_pillow, coded, picture


def numbers(path: Path, count: int = 23) -> Path:
    """A folder of flat images whose first pixel is their number."""
    path.mkdir()
    for at in range(count):
        Image.fromarray(np.full((4, 4, 3), at, np.uint8)).save(path / f"{at:03}.png")
    return path


def order(packed: Packed) -> list[int]:
    return [int(by_pillow(one["image"])[0, 0, 0]) for one in packed.samples.values()]


def test_splits_share_no_sample_and_are_those_of_a_stream(tmp_path: Path) -> None:
    source = numbers(tmp_path / "src")
    parts = [
        order(Packed("imagefolder", source, tmp_path / f"{split[:2]}.lmdb", split=split))
        for split in ("0%:60%", "60%:100%")
    ]
    assert parts == [sorted(part) for part in parts]
    assert sorted([*parts[0], *parts[1]]) == list(range(23))
    wanted = Order(23, "0%:60%").indices(0, 0, np.arange(13))
    assert sorted(wanted.tolist()) == parts[0]


def test_shuffled_samples_come_in_an_order_that_only_the_seed_decides(tmp_path: Path) -> None:
    source = numbers(tmp_path / "src")
    orders = [
        order(Packed("imagefolder", source, tmp_path / f"{at}", shuffle=seed, workers=at + 1))
        for at, seed in enumerate((5, 5, 6))
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(23)) != orders[0]


def test_a_shuffled_split_holds_the_samples_of_the_split(tmp_path: Path) -> None:
    source = numbers(tmp_path / "src")
    plain = order(Packed("imagefolder", source, tmp_path / "a", split="0:9"))
    mixed = order(Packed("imagefolder", source, tmp_path / "b", split="0:9", shuffle=0))
    assert sorted(mixed) == plain != mixed


def test_a_split_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"--split: split '2:1' of 23 samples is empty"):
        Packed("imagefolder", numbers(tmp_path / "src"), tmp_path / "db", split="2:1")


@pytest.mark.parametrize("total", [1, 5, 9_000])
def test_a_long_shuffled_selection_is_a_permutation_from_any_place(total: int) -> None:
    chosen = Selection(total, seed=3)
    assert sorted(chosen[place] for place in range(total)) == list(range(total))
    assert chosen[total // 2] == Selection(total, seed=3)[total // 2]


def test_what_was_begun_with_other_options_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = numbers(tmp_path / "src")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(item_samples.ItemSamples, "_result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Packed("imagefolder", source, tmp_path / "db")
    packed = Packed("imagefolder", source, tmp_path / "db", shuffle=1)
    assert order(packed) == order(Packed("imagefolder", source, tmp_path / "new", shuffle=1))


@pytest.mark.parametrize("kind", ["webdataset", "csv", "parquet", "coco"])
def test_a_pack_that_is_broken_off_goes_on_to_the_same_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    SOURCES[kind][0](tmp_path)
    src = tmp_path / OTHERS[kind]
    options: dict[str, Any] = {} if kind == "parquet" else {"shuffle": 3}
    made: list[int] = []
    result = item_samples.ItemSamples._result

    def interrupted(*args: Any) -> Any:
        made.append(1)
        if len(made) == 4:
            raise KeyboardInterrupt
        return result(*args)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "BATCH_SAMPLES", 2)
        patch.setattr(item_samples.ItemSamples, "_result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Packed(kind, src, tmp_path / "db", **options)
    packed = Packed(kind, src, tmp_path / "db", **options)
    assert packed.report.resumed_at == 2
    whole = Packed(kind, src, tmp_path / "whole", **options)
    assert repr(packed.samples) == repr(whole.samples)
    assert packed.report.identity == whole.report.identity


OTHERS = {
    "webdataset": "shards",
    "csv": "labels.csv",
    "parquet": "data",
    "coco": "annotations/instances_train2017.json",
}


# Images made smaller


def stored(data: bytes, **options: Any) -> tuple[Image.Image, str]:
    made, remark = StoredImages(**options).stored(data)
    image = Image.open(io.BytesIO(made))
    image.load()
    return image, remark


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_that_is_made_smaller_is_pillows_result_as_a_jpeg(kind: str) -> None:
    data = coded(picture(120, 200), kind, **({} if kind == "PNG" else {"quality": 95}))
    image, remark = stored(data, shorter_side=60, quality=95)
    assert (image.format, image.size, image.mode, remark) == (
        "JPEG",
        (100, 60),
        "RGB",
        "made smaller",
    )
    with Image.open(io.BytesIO(data)) as whole:
        wanted = np.asarray(whole.convert("RGB").resize((100, 60), Image.Resampling.BILINEAR))
    assert np.abs(np.asarray(image).astype(int) - wanted).mean() < 2


def test_a_lower_quality_takes_fewer_bytes() -> None:
    data = coded(picture(120, 200), "JPEG", quality=98)
    sizes = [len(StoredImages(quality=quality).stored(data)[0]) for quality in (30, 60, 95)]
    assert sizes == sorted(set(sizes))


def test_a_gray_jpeg_stays_gray() -> None:
    gray = Image.fromarray(picture(90, 90)).convert("L")
    image, _ = stored(coded(gray, "JPEG"), shorter_side=45)
    assert (image.mode, image.size) == ("L", (45, 45))


def test_an_image_that_is_small_enough_keeps_its_bytes() -> None:
    for data in (coded(picture(50, 90), "JPEG"), coded(picture(50, 90))):
        assert StoredImages(shorter_side=50, quality=10).stored(data) == (data, "")


def test_the_numbers_of_a_mask_stay_whole_numbers_of_the_mask() -> None:
    mask = Image.fromarray((picture(80, 80)[:, :, 0] // 40).astype(np.uint8), "L").convert("P")
    mask.putdata((picture(80, 80)[:, :, 0] // 40).ravel().tolist())
    image, _ = stored(coded(mask), shorter_side=20)
    assert (image.format, image.size) == ("PNG", (20, 20))
    assert set(np.unique(np.asarray(image))) <= set(np.unique(np.asarray(mask)))
    assert StoredImages(quality=50).stored(coded(mask)) == (coded(mask), "")


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_kept(mode: str) -> None:
    whole = Image.fromarray(picture(80, 80)).convert(mode)
    whole.putalpha(Image.fromarray(picture(80, 80, 1)[:, :, 0]))
    image, _ = stored(coded(whole), shorter_side=40)
    assert (image.format, image.mode, image.size) == ("PNG", "RGBA", (40, 40))


def test_sixteen_bits_stay_sixteen_bits() -> None:
    deep = Image.fromarray(picture(80, 80)[:, :, 0].astype(np.uint16) * 257)
    image, _ = stored(coded(deep), shorter_side=40)
    assert (image.format, image.mode, image.size) == ("PNG", "I;16", (40, 40))


def test_the_orientation_of_the_camera_stays_known() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = coded(Image.fromarray(picture(100, 60)), "JPEG", exif=exif.tobytes())
    image, _ = stored(data, shorter_side=30)
    assert (image.size, image.getexif()[0x0112]) == ((30, 50), 6)


@pytest.mark.needs("extensions")
def test_a_smaller_image_is_rewritten_for_random_access_and_can_be_cropped(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.png").write_bytes(coded(picture(300, 400)))
    packed = Packed("imagefolder", tmp_path / "src", tmp_path / "db", resize=200)
    assert packed.report.tally == (("made smaller", 1),)
    assert tiles.read(packed.samples["a.png"]["image"]) is not None


@pytest.mark.parametrize(
    "data", [b"", b"no image", coded(picture())[:200], coded(picture(), "JPEG")[:300]]
)
def test_a_damaged_image_is_bad_also_where_it_is_to_be_made_smaller(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"image|JPEG|PNG"):
        StoredImages(shorter_side=20).stored(data)


# The list of what a source holds


def test_records_are_read_in_any_order_after_they_are_sealed(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    records = [b"", b"one", b"\n\0", b"x" * 100_000, b""]
    for record in records:
        spool.append(record)
    spool.seal()
    assert [spool[at] for at in (4, 2, 0, 3, 1)] == [records[at] for at in (4, 2, 0, 3, 1)]
    for at in (-1, 5):
        with pytest.raises(IndexError):
            spool[at]
    spool.close()
    assert list(tmp_path.iterdir()) == []

"""A sample, and how a value that user code returns becomes one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.config.decode_modes import DecodeModes
from loaderd_wire.limits import CLIENT_FIELDS

MAX_DEPTH = 16
MAX_FIELDS = 4096
MAX_LIST = 256  # values of a list or tuple that become fields
PLAIN = frozenset("?bBhHiIlLqQefdFD")  # numpy's letters for numbers that a slot holds as they are
NARROW = ("bfloat16", "float8", "float4")  # dtypes of tensors that numpy does not know
IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\x00", b"MM\x00*")


class BadValue(ValueError):
    """A value that cannot be a field; the text names the field."""


class Sample(dict[str, Any]):
    """Field -> numpy array, str or bytes.

    Arrays may be read-only views, valid as long as the source is open, unless in `fresh`.

    Attributes:
        encoded: Fields that hold the bytes of a stored image.
        images: Fields that are images, height x width x channels.
        planar: Images with their channels first, made so by `to_chw`.
        fresh: Fields whose array is writable and shared with nothing.
    """

    __slots__ = ("encoded", "fresh", "images", "planar")

    def __init__(
        self, *args: Any, encoded: tuple[str, ...] = (), images: tuple[str, ...] = ()
    ) -> None:
        super().__init__(*args)
        self.encoded = set(encoded)
        self.images = set(images)
        self.planar: set[str] = set()
        self.fresh: set[str] = set()


def is_image_file(data: bytes | memoryview) -> bool:
    """True if these bytes begin like a stored image (JPEG, PNG, WebP, GIF, TIFF)."""
    head = bytes(data[:12])
    return head.startswith(IMAGE_MAGIC) or (head[:4] == b"RIFF" and head[8:] == b"WEBP")


def plain_array(value: np.ndarray, name: str) -> np.ndarray:
    """The array with a dtype that a slot can hold: numbers, little-endian.

    Raises BadValue naming field and dtype.
    """
    dtype = value.dtype
    if dtype.kind not in "biufc" or dtype.itemsize > 16 or dtype.char in "gG":
        hint = {
            "O": "make it numbers, or lists of the same length",
            "M": "use .astype('int64')",
            "m": "use .astype('int64')",
            "U": "return a str",
            "S": "return bytes",
            "V": "return its parts as fields of their own" if dtype.names else "use a number type",
        }.get(dtype.kind, "use float64 or complex128")
        raise BadValue(
            f"field {name!r} is an array of dtype {dtype}, which a batch cannot hold: {hint}"
        )
    return value.astype(dtype.newbyteorder("<")) if dtype.str[0] == ">" else np.asarray(value)


def _tensor(value: Any, name: str) -> np.ndarray:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype.startswith(NARROW):
        bits = "int16" if dtype == "bfloat16" else "uint8"
        raise BadValue(
            f"field {name!r} is a tensor of torch.{dtype}, which a batch cannot hold: return "
            f"x.float(); or x.view(torch.{bits}), and view it as torch.{dtype} in your training"
        )
    try:
        return plain_array(value.detach().cpu().resolve_conj().resolve_neg().numpy(), name)
    except (TypeError, RuntimeError) as error:
        raise BadValue(
            f"field {name!r} is a tensor of {value.dtype} that numpy cannot hold: {error}"
        ) from None


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_picture(value: Any) -> bool:
    """Whether it is a Pillow image."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def is_array(value: Any) -> bool:
    """Whether it is an array, a tensor, a numpy number, or a Pillow image."""
    return (
        isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (str, bytes))
    ) or (_is_tensor(value) or is_picture(value))


def _number(value: Any, name: str) -> np.ndarray:
    dtype = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}[
        next(kind for kind in (bool, int, float, complex) if isinstance(value, kind))
    ]
    try:
        return np.array(value, dtype)
    except OverflowError:
        raise BadValue(f"field {name!r} is {value!r:.40}, which does not fit int64") from None


def _pixels(image: Any, name: str, mode: str | DecodeModes) -> np.ndarray:
    """A Pillow image of a user's.

    Raises BadValue for one whose numbers would be lost without anybody having said so, ImageError.
    """
    from loaderd.data.images.decode import from_pillow
    from loaderd.data.images.label_numbers import has_sixteen_bits, holds_labels
    from loaderd.data.images.orientation import exif_orientation, upright_pixels

    said = mode if isinstance(mode, str) else mode.of(name)
    beside = not isinstance(mode, str) and mode.beside(name)
    if (
        said != "index"
        and not (said == "unchanged" and has_sixteen_bits(image))
        and holds_labels(image, gray=beside)
        and (isinstance(mode, str) or not mode.said(name))
    ):
        # pack has no transforms: it says its mode as a text
        keep = (
            ""
            if isinstance(mode, str)
            else f'a transform {{op = "decode", field = "{name}", mode = "index"}}, or '
        )
        raise BadValue(
            f"field {name!r} is a Pillow image of mode {image.mode!r}, whose numbers may be "
            f"labels. To keep them: {keep}"
            'return numpy.asarray(image); for colours: return image.convert("RGB")'
        )
    pixels = from_pillow(image, said)
    if isinstance(mode, str) or not mode.exif:
        return pixels
    return upright_pixels(pixels, exif_orientation(image))


def leaf(value: Any, name: str, mode: str | DecodeModes, sample: Sample) -> None:
    """Put one value that is no container into the sample. Raises BadValue naming the field."""
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (str, bytes)):
        sample[name] = plain_array(np.asarray(value), name)
    elif isinstance(value, (bool, int, float, complex)):
        sample[name] = _number(value, name)
    elif isinstance(value, str):
        sample[name] = str(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        sample[name] = value if isinstance(value, memoryview) else bytes(value)
    elif _is_tensor(value):
        sample[name] = _tensor(value, name)
    elif is_picture(value):
        sample[name] = _pixels(value, name, mode)
        sample.images.add(name)
        sample.fresh.add(name)
    elif value is None:
        raise BadValue(f"field {name!r} is None")
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise BadValue(
            f"field {name!r} is a {kind}, which a batch cannot hold: return arrays, tensors, "
            "numbers, str or bytes"
        )


def field_name(key: Any) -> str:
    """The name of the field that a key of a mapping, or a place in a tuple, stands for.

    Raises BadValue for what is no Unicode text.
    """
    name = str(key)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadValue(
                f"a field is called {name!a}, which is no Unicode text: rename it"
            ) from None
    return name


def _walk(
    value: Any,
    name: str,
    depth: int,
    mode: str | DecodeModes,
    sample: Sample,
    arrays: Collection[str],
) -> None:
    if name in arrays and depth and isinstance(value, (tuple, list)):
        value = _as_array(value, name)
    if isinstance(value, Mapping):
        parts = [(field_name(key), item) for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        if depth and len(value) > MAX_LIST:
            raise BadValue(
                f"field {name!r} is a {type(value).__name__} of {len(value)} values: make it an "
                "array"
            )
        parts = [(str(at), item) for at, item in enumerate(value)]
    else:
        if name in sample:
            raise BadValue(f"two fields are called {name!r}")
        if name in CLIENT_FIELDS:
            raise BadValue(f"a field must not be called {name!r}: that name is loaderd's own")
        if len(sample) >= MAX_FIELDS:
            raise BadValue(
                f"the sample has more than {MAX_FIELDS:,} fields: put values of one dtype into an "
                "array"
            )
        leaf(value, name, mode, sample)
        return
    if depth >= MAX_DEPTH:
        raise BadValue(f"field {name!r} is nested more than {MAX_DEPTH} deep")
    for part, item in parts:
        _walk(item, f"{name}.{part}" if depth else part, depth + 1, mode, sample, arrays)


def _as_array(value: Sequence[Any], name: str) -> np.ndarray:
    """Lists of numbers as an array."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadValue(f"field {name!r} is a list that is no array: {error}") from None


def _flat(value: Mapping[str, Any] | tuple[Any, ...]) -> Sample | None:
    """The sample of plain arrays, numbers and texts without nesting; None for any other.

    It is what `_walk` makes of it, at a third of the cost.
    """
    sample = Sample()
    pairs: Any = value.items() if type(value) is dict else enumerate(value)
    for name, item in pairs:
        kind = type(item)
        if kind is np.ndarray:
            if item.dtype.char not in PLAIN or item.dtype.byteorder == ">":
                return None
        elif kind is int and -(1 << 63) <= item < 1 << 63:
            item = np.array(item, np.int64)
        elif kind is float:
            item = np.array(item, np.float64)
        elif kind is not str and kind is not bytes and kind is not memoryview:
            return None
        if type(name) is int:
            name = str(name)
        elif type(name) is not str or not name.isascii() or name in CLIENT_FIELDS:
            return None
        sample[name] = item
    return sample if 0 < len(sample) <= MAX_FIELDS and len(sample) == len(value) else None


def flatten(
    value: Any, mode: str | DecodeModes, arrays: Collection[str] = ()
) -> tuple[Sample, str]:
    """Whatever a dataset returned, as (sample, form).

    A mapping is a "dict"; a tuple, list or single value a "tuple" with fields "0", "1", ... Nested
    fields are called "a.b". A list or tuple whose name is in `arrays` is an array.

    Raises BadValue naming the field.
    """
    kind = type(value)
    if kind is dict or kind is tuple:
        flat = _flat(value)
        if flat is not None:
            return flat, "dict" if kind is dict else "tuple"
    sample = Sample()
    form = "dict" if isinstance(value, Mapping) else "tuple"
    if value is None:
        raise BadValue("the sample is None")
    whole = value if isinstance(value, (Mapping, tuple, list)) else (value,)
    _walk(whole, "", 0, mode, sample, arrays)
    if not sample:
        raise BadValue(f"the sample has no fields: it is an empty {type(value).__name__}")
    return sample, form

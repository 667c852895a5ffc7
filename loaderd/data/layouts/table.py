"""All layouts, in the order in which a database is asked.

This is the one table of what is recognised by what.
"""

from __future__ import annotations

from loaderd.data.layouts.arrays_by_name import DeepmdLayout, LatentsLayout, Stylegan2Layout
from loaderd.data.layouts.ase import AseLayout
from loaderd.data.layouts.audio import RaveLayout
from loaderd.data.layouts.base import Database, StoredLayout
from loaderd.data.layouts.caffe import Caffe2Layout, CaffeLayout
from loaderd.data.layouts.counted import (
    Atom3dLayout,
    ChineseClipPairs,
    OcpLayout,
    SafetensorsLayout,
    SaprotLayout,
    SorelLayout,
    TableMasterLayout,
    TapeLayout,
    UnimolLayout,
    ValuesLayout,
)
from loaderd.data.layouts.features import (
    ChineseClipImages,
    MmfLayout,
    UniterLayout,
    UniterTextLayout,
)
from loaderd.data.layouts.files import (
    BasicsrLayout,
    FilesLayout,
    LsunLayout,
    MmsrLayout,
    RawLayout,
    SiamfcLayout,
)
from loaderd.data.layouts.image_folder import ImageFolderLayout
from loaderd.data.layouts.pyxis import PyxisLayout, PyxisMsgpackLayout
from loaderd.data.layouts.scene_text import SceneTextLayout
from loaderd.data.layouts.tensorpack import TensorpackLayout

# Those that a key tells come first, then files beside the database, then what values look like.
LAYOUTS: tuple[type[StoredLayout], ...] = (
    PyxisLayout,
    PyxisMsgpackLayout,
    SceneTextLayout,
    ImageFolderLayout,
    UniterLayout,
    TensorpackLayout,
    TableMasterLayout,
    MmfLayout,
    AseLayout,
    Atom3dLayout,
    TapeLayout,
    Stylegan2Layout,
    OcpLayout,
    SaprotLayout,
    ChineseClipImages,
    ChineseClipPairs,
    DeepmdLayout,
    LatentsLayout,
    BasicsrLayout,
    MmsrLayout,
    UniterTextLayout,
    CaffeLayout,
    Caffe2Layout,
    RaveLayout,
    LsunLayout,
    SiamfcLayout,
    FilesLayout,
    UnimolLayout,
    SorelLayout,
    SafetensorsLayout,
    ValuesLayout,
    RawLayout,
)
NAMES = tuple(layout.name for layout in LAYOUTS)


def recognised(db: Database) -> type[StoredLayout] | None:
    """The layout of this database; None if no layout knows it."""
    return next((layout for layout in LAYOUTS if layout.seen(db)), None)


def named(name: str) -> type[StoredLayout] | None:
    """The layout of this name."""
    return next((layout for layout in LAYOUTS if layout.name == name), None)

"""What to write instead of words of DataLoader, torchvision and Loader.

People write those into a config. `schema.py` looks here for a word that the table at hand does not
know.
"""

from __future__ import annotations

STREAM = "[streams.NAME]"
_PAGEABLE = "leave it out: batches lie in shared memory already, and .to(device) copies from there"

SETTINGS = {
    "sampler": (
        f"the order is {STREAM} shuffle and seed, a part of the samples is split; ranks "
        "are found by Loader, or are its rank= and world_size="
    ),
    "batch_sampler": f"use {STREAM} batch_size, shuffle and split",
    "collate_fn": (
        f'use {STREAM} collate = "pkg.module:function", which is called as function(samples) or '
        "function(samples, rng)"
    ),
    "pin_memory": _PAGEABLE,
    "pin_memory_device": _PAGEABLE,
    "prefetch_factor": (
        "use the argument prefetch= of Loader, the number of finished batches ahead of the trainer"
    ),
    "prefetch": "it is an argument of Loader: prefetch=4",
    "timeout": (
        "use [workers] sample_timeout_s for a sample; for a batch the argument timeout_s= of Loader"
    ),
    "worker_init_fn": 'use [workers] init = "pkg.module:function", which is called with worker_id',
    "persistent_workers": "leave it out: workers keep running between epochs",
    "multiprocessing_context": 'use [workers] start_method = "forkserver" or "spawn"',
    "generator": f"use {STREAM} seed: all randomness is a function of (seed, epoch, sample)",
    "in_order": "leave it out: batches always come in order",
    "num_replicas": "leave it out: Loader finds the ranks, or is given rank= and world_size=",
    "transform": 'use [[streams.NAME.transforms]] with op = "..." or call = "pkg.module:function"',
    "target_transform": (
        'use [[streams.NAME.transforms]] with call = "pkg.module:function", which '
        "is given the whole sample"
    ),
    "root": (
        f"for a dataset's class use {STREAM} dataset_args = {{root = ...}}; a database is "
        "lmdb = ..."
    ),
    "max_workers": "use [workers] num_workers",
    "workers": "use [workers] num_workers",
    "device": "leave it out: the trainer moves its batches with .to(device)",
    "shared": f"use {STREAM} share = true, or the argument shared=True of Loader",
    "epochs": "leave it out: the trainer iterates over its Loader as often as it likes",
} | dict.fromkeys(
    (
        "rank",
        "world_size",
        "as_tuple",
        "output",
        "timeout_s",
        "reconnect_s",
        "stall_warning_s",
    ),
    "it is an argument of Loader, in the training script",
)

# Ops of torchvision and of later versions. A near name among ours would do something else.
ABSENT = (
    "rotate", "RandomRotation", "RandomAffine", "AutoAugment", "TrivialAugmentWide", "AugMix",
    "FiveCrop", "TenCrop", "RandomPerspective",
    "ElasticTransform", "RandomInvert", "RandomPosterize", "RandomSolarize", "RandomAutocontrast",
    "RandomEqualize", "RandomAdjustSharpness", "ScaleJitter", "RandomIoUCrop", "RandomZoomOut",
)  # fmt: skip
INSTEAD = (
    'not in this version; write it as call = "pkg.module:function", def function(sample, '
    "rng, **args)"
)

OPS = {
    "ToTensor": "to_float, then to_chw",
    "PILToTensor": "to_chw",
    "ToImage": "nothing, or to_chw",
    "ToDtype": "to_float",
    "ConvertImageDtype": "to_float",
    "Normalize": "normalize",
    "Resize": "resize",
    "CenterCrop": "center_crop",
    "RandomCrop": "random_crop",
    "RandomResizedCrop": "random_resized_crop",
    "RandomHorizontalFlip": "hflip",
    "RandomVerticalFlip": "vflip",
    "RandomRotate90": "rotate90",
    "LongestMaxSize": "long_side",
    "Pad": "pad",
    "ColorJitter": "color_jitter",
    "RandomGrayscale": "grayscale with p",
    "Grayscale": 'mode = "gray" of the stream',
    "GaussianBlur": "gaussian_blur",
    "RandomErasing": "random_erasing",
    "RandAugment": "rand_augment",
    "MixUp": "mixup",
    "CutMix": "cutmix",
}

"""The words of a daemon's config, and the table that each stands in.

A trainer may have no daemon installed, so they are written down here once more. A test compares
them with the config's own tables.
"""

from __future__ import annotations

TABLES = {
    "[daemon]": (
        "socket memory metrics thumbnails allow_uids drain_s exit_when_idle_s stage stage_limit "
        "stage_days quarantine"
    ),
    "[workers]": (
        "num_workers reset_affinity sample_timeout_s worker_memory start_method init ray"
    ),
    "[workers.ray]": "address num_workers resources stage",
    "[streams.NAME]": (
        "lmdb parts dataset of stop dataset_args layout layout_args key_format count dtype shape "
        "fields index_file allow_pickle decode mode exif max_pixels views split split_by group "
        "keys weights repeat batch_size shuffle classes seed drop_last tail epoch_steps on_error "
        "empty max_errors nonfinite collate pad ragged ragged_as bucket_by max_tokens share "
        "share_window transforms"
    ),
}


def table_of(key: str) -> str:
    """The first table that has this key, as a config writes its header; "" if none has."""
    return next((table for table, keys in TABLES.items() if key in keys.split()), "")


def every_key() -> list[str]:
    """All keys, each once."""
    return list(dict.fromkeys(key for keys in TABLES.values() for key in keys.split()))

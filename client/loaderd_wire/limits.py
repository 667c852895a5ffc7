"""The limits and reserved names that both sides check, each written once. Pure."""

from __future__ import annotations

MAX_INT = 1 << 62  # of any whole number in a message or a config; so of a seed
MAX_ROWS = 1 << 20  # of a batch; as many as a stamp of the status board can count
MAX_SLOTS = 1 << 20  # of a segment
MAX_PREFETCH = 1024  # finished batches ahead of the trainer
MAX_RANKS = 1 << 31  # of one job

INDEX_FIELD, KEY_FIELD, REPEATED_FIELD = "__index__", "__key__", "__repeated__"
SOURCE_FIELD = "__source__"  # of mixtures
PART_FIELD = "__part__"
# fields that the client adds on request: no sample may have them, and they take no room in a slot
CLIENT_FIELDS = (INDEX_FIELD, KEY_FIELD, REPEATED_FIELD, SOURCE_FIELD, PART_FIELD)

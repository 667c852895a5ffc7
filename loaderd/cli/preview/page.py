"""A batch as one HTML page that needs nothing else: no script, no file, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from loaderd.cli.preview.drawing import curve, figure
from loaderd.cli.preview.page_style import STYLE
from loaderd.cli.preview.panels import Panels, Words

SHOWN_LABELS = 16


def page(facts: Mapping[str, Any], panels: Sequence[Panels | None]) -> str:
    """The page.

    Args:
        facts: As `preview --json` prints them.
        panels: What is shown of each row; None for a bad sample.
    """
    rows = facts["rows"]
    place = "stream {stream}, epoch {epoch}, step {step}".format(**facts)
    where = (
        "position {position}, rank {rank} of {world_size}, seed {seed}".format(**facts)
        + f", {len(rows)} rows"
    )
    cards = "".join(_card(row, each) for row, each in zip(rows, panels, strict=True))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(place)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(place)}</h1><p>{escape(where)}</p>{_counts(rows)}"
        f"{_switches(panels)}</header>\n<main>\n{cards}</main>\n</body>\n</html>\n"
    )


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many rows are bad, and how many have which label."""
    bad = sum("bad" in row for row in rows)
    labels = Counter(row["label"] for row in rows if "label" in row)
    lines = [f'<p class="bad">{bad} of {len(rows)} samples are bad</p>'] if bad else []
    if len(labels) > 1:
        most = max(labels.values())
        bars = "".join(
            f'<li style="--part:{count / most:.3f}">{escape(name)} <b>{count}</b></li>'
            for name, count in labels.most_common(SHOWN_LABELS)
        )
        more = len(labels) - SHOWN_LABELS
        rest = f"<li>and {more} more</li>" if more > 0 else ""
        lines.append(f'<ul class="labels" aria-label="rows by label">{bars}{rest}</ul>')
    return "".join(lines)


def _switches(panels: Sequence[Panels | None]) -> str:
    pictures = [each for panel in panels if panel is not None for each in panel.pictures]
    words = [
        ("masks", any(each.mask is not None for each in pictures)),
        ("marks", any(len(each.boxes) or len(each.points) for each in pictures)),
    ]
    boxes = "".join(
        f'<label><input type="checkbox" id="{word}" checked> '
        f"{'boxes and points' if word == 'marks' else word}</label>"
        for word, there in words
        if there
    )
    return f'<p class="switches">{boxes}</p>' if boxes else ""


def _card(row: Mapping[str, Any], panels: Panels | None) -> str:
    title = row.get("label") or f"index {row['index']}"
    about = f"sample {row['key']}"
    key = "" if row["key"] == str(row["index"]) else f"<b>{escape(row['key'])}</b> "
    parts = [
        f"<h2>{escape(str(title))}</h2>",
        f'<p class="key">{key}index {row["index"]}, position {row["position"]}</p>',
    ]
    if "bad" in row:
        parts.append(f'<p class="bad" role="alert">{escape(row["bad"])}</p>')
    if panels is not None:
        parts += [figure(each, about) for each in panels.pictures]
        parts += [curve(each, about) for each in panels.curves]
        parts += [_words(each) for each in panels.words if "\n" in each.text or len(each.text) > 40]
        short = [each for each in panels.words if "\n" not in each.text and len(each.text) <= 40]
        rows = "".join(
            f'<tr title="{escape(each.kind)}"><th scope="row">{escape(each.name)}</th>'
            f"<td>{escape(each.text)}</td></tr>"
            for each in short
        )
        parts.append(f"<table>{rows}</table>" if rows else "")
    if row.get("drawn"):
        items = "".join(f"<li>{escape(each)}</li>" for each in row["drawn"])
        parts.append(f'<ul class="drawn" aria-label="what the transforms drew">{items}</ul>')
    kind = ' class="faulty"' if "bad" in row else ""
    return f"<article{kind}>{''.join(parts)}</article>\n"


def _words(panel: Words) -> str:
    return (
        f"<figure><pre>{escape(panel.text)}</pre><figcaption>{escape(panel.name)} "
        f"<span>{escape(panel.kind)}</span></figcaption></figure>"
    )

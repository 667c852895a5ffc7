"""What Prometheus reads, and that the dashboard and the alerts ask for nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from loaderd.server import metrics
from loaderd.server.status_report import MemoryStatus
from server.test_status_report import STATUS as FULL

DEPLOY = Path(__file__).parents[2] / "deploy"
LABELS = {"stream", "rank", "session", "group", "verdict", "state", "cause", "stage", "le", "version", "python"}  # fmt: skip
OLD = {  # what others' dashboards have asked for since the first version
    "verdict", "wait_fraction", "workers_needed", "ready", "sessions", "sessions_waiting", "session_batches", "workers", "jobs", "stream_failed",
    "memory_limit_bytes", "memory_segment_bytes", "bad_samples_total", "loop_turns_total", "cpu_seconds_total", "lost_seconds_total",
}  # fmt: skip
MEMBER, *OTHERS = FULL.sessions
assert MEMBER.progress is not None
MEMBER = replace(MEMBER, progress=replace(MEMBER.progress, group=4, lag=3))
STATUS = replace(FULL, sessions=(MEMBER, *OTHERS))
TEXT = metrics.text(STATUS)
FAMILIES = list(text_string_to_metric_families(TEXT))
SAMPLES = [sample for family in FAMILIES for sample in family.samples]
NAMES = {sample.name for sample in SAMPLES}


def values(name: str) -> dict[tuple[str, ...], float]:
    return {tuple(s.labels.values()): s.value for s in SAMPLES if s.name == f"loaderd_{name}"}


def test_the_numbers_come_from_the_status() -> None:
    assert values("session_batches") == {("train",): 30, ("val",): 0}
    assert values("sessions_waiting") == {(): 1}
    assert values("workers") == {("busy",): 1, ("starting",): 2, ("up",): 1}
    assert values("stream_failed") == {("train",): 0, ("val",): 1}
    assert values("memory_segment_bytes") == {(): 1 << 28}
    assert values("worker_memory_bytes") == {(): 5}
    assert values("restarts_total") == {("crash",): 2}
    assert values("batches_total") == {("train",): 30}
    assert values("bytes_total") == {("train",): 4096}
    assert values("verdict") == {("1", "5", "train", "read-bound"): 1}
    assert values("epoch_left_seconds") == {("1", "5", "train"): 24.2}
    assert values("build_info").popitem()[0][1] == "1"


def test_workers_of_other_hosts_are_told_of_where_there_are_to_be_any() -> None:
    assert values("remote_workers_wanted") == {(): 32}
    assert values("remote_workers") == {(): 1}
    assert STATUS.pool is not None
    here = metrics.text(replace(STATUS, pool=replace(STATUS.pool, remote=None)))
    assert "loaderd_remote_workers" not in here


def test_a_group_is_told_of_and_how_far_its_sessions_are_behind() -> None:
    assert values("group_sessions") == {("4", "train"): 2}
    assert values("group_batches_made_total") == {("4", "train"): 30}
    assert values("group_batches_told_total") == {("4", "train"): 55}
    assert values("group_hits_total") == {("4", "train"): 25}
    assert values("session_lag_batches") == {("1", "5", "train"): 3}


def test_a_histogram_counts_up_and_has_the_sum() -> None:
    assert values("next_wait_seconds_bucket") == {
        ("0.001", "train"): 3,
        ("1.0", "train"): 7,
        ("+Inf", "train"): 8,
    }
    assert values("next_wait_seconds_sum") == {("train",): 40.5}
    assert values("batch_seconds_count") == {("train",): 8}
    assert set(values("stage_seconds_count")) == {(s, "train") for s in ("read", "decode", "transform", "write")}  # fmt: skip


def test_old_names_stay() -> None:
    assert {f"loaderd_{name}" for name in OLD} <= NAMES


def test_each_metric_has_a_help_and_only_labels_of_few_values() -> None:
    assert [family.name for family in FAMILIES if not family.documentation] == []
    assert {label for sample in SAMPLES for label in sample.labels} <= LABELS
    assert "7.png" not in TEXT  # the key of a sample in the status


def test_a_name_in_a_label_may_have_any_characters() -> None:
    odd = 'a"b\\c\n'
    text = metrics.text(replace(STATUS, streams={odd: STATUS.streams["train"]}))
    families = text_string_to_metric_families(text)
    found = [s for family in families for s in family.samples if s.name == "loaderd_batches_total"]
    assert found[0].labels == {"stream": odd}


def test_large_numbers_keep_their_digits() -> None:
    text = metrics.text(replace(STATUS, memory=MemoryStatus(12207781889, 0)))
    assert "\nloaderd_memory_limit_bytes 12207781889\n" in text
    assert "\nloaderd_sessions 2\n" in text


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def panels() -> list[dict[str, Any]]:
    return json.loads((DEPLOY / "grafana.json").read_text())["panels"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in panels() for target in panel.get("targets", []))


def asked_for(node: Any) -> Iterator[Any]:
    """The selectors of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    if isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
        return
    for name in ("expr", "lhs", "rhs", "args"):
        inner = getattr(node, name, None)
        for each in inner if isinstance(inner, list) else [inner] if inner is not None else []:
            yield from asked_for(each)


@pytest.mark.parametrize("number", range(40))
def test_an_expression_is_promql_and_asks_for_what_there_is(number: int) -> None:
    every = [expression.replace("$__rate_interval", "5m") for expression in expressions()]
    assert 15 < len(every) <= 40
    if number < len(every):
        selectors = list(asked_for(promql_parser.parse(every[number])))
        assert selectors, every[number]
        assert {selector.name for selector in selectors} <= NAMES | {"up"}, every[number]
        labels = {m.name for selector in selectors for m in selector.matchers.matchers}
        assert labels <= LABELS | {"job", "instance"}, every[number]


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert set(names) >= {"LoaderdStarvingTrainer", "LoaderdCrashLoop", "LoaderdBadSamples", "LoaderdMemoryNearLimit", "LoaderdSilent"}  # fmt: skip
    page = (DEPLOY / "README.md").read_text()
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert f"`{rule['alert']}`" in page


def test_each_panel_has_a_title_a_unit_and_a_place_of_its_own() -> None:
    places = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in panels()
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]

"""What dashboard, alerts and pages say of metrics is what the processes have.

Queries are read by a parser of PromQL; names, labels and, where it is known beforehand, the values
that labels are compared with are looked up in the registries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import orjson
import promql_parser
import pytest
import yaml

from ingress.retries import Loss
from ingress.state_metrics import REFUSALS
from schemas import errors
from schemas.job import JobClass
from schemas.usage_record import UsageOutcome
from tests.metrics_page import PAGE, Family, catalogue, page

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
DASHBOARD = orjson.loads((ROOT / "deploy/grafana/headrace.json").read_bytes())
RUNBOOK = (ROOT / "docs/operations.md").read_text()

ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
OF_PROMETHEUS = {"job", "instance", "process"}  # the last is of several behind one port
OF_THE_LIBRARY = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
OF_THE_LIBRARY |= {"process_open_fds", "process_start_time_seconds", "ALERTS"}
SUFFIXES = ("_bucket", "_count", "_sum")

VALUES: Mapping[str, set[str]] = {
    "class": set(get_args(JobClass)),
    "state": {"live", "batch", "free"},
    "reason": {*REFUSALS, *get_args(Loss)},
    "code": {
        error.code
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, errors.ServingError)
        and "code" in vars(error)
    },
    "outcome": {*get_args(UsageOutcome), "dropped", "sent"},
    "status": {"in_progress"},
}


@pytest.fixture(scope="module")
def known() -> Mapping[str, Family]:
    return catalogue()


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


QUERIES = [*((name, rule["expr"]) for name, rule in ALERTS.items()), *dashboard_queries()]


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all in it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from parts(inner)
    for inner in getattr(expression, "args", ()):
        yield from parts(inner)


def family_of(name: str, known: Mapping[str, Family]) -> tuple[Family, set[str]] | None:
    """The family that a sample of this name belongs to, and its labels."""
    if name in known and known[name].type != "histogram":
        return known[name], set(known[name].labels)
    for suffix in SUFFIXES:
        family = known.get(name.removesuffix(suffix))
        if name.endswith(suffix) and family is not None and family.type == "histogram":
            return family, {*family.labels, *(["le"] if suffix == "_bucket" else [])}
    return None


def faults(query: str, known: Mapping[str, Family]) -> list[str]:
    """What a query speaks of that there is not.

    Raises:
        ValueError: It is no query.
    """
    query = query.replace("$__rate_interval", "1m").replace("$model", ".*")
    found, labels = [], set(OF_PROMETHEUS)
    expressions = list(parts(promql_parser.parse(query)))
    for part in expressions:
        if not isinstance(part, promql_parser.VectorSelector):
            continue
        if part.name in OF_THE_LIBRARY:
            allowed = {"alertname", "alertstate"} if part.name == "ALERTS" else set()
        elif (looked_up := family_of(part.name, known)) is not None:
            allowed = looked_up[1]
        else:
            found.append(f"no metric {part.name}")
            continue
        labels |= allowed
        for matcher in part.matchers.matchers:
            if matcher.name not in allowed | OF_PROMETHEUS:
                found.append(f"{part.name} has no label {matcher.name}")
            elif matcher.name in VALUES and matcher.value != ".*":
                unknown = set(matcher.value.split("|")) - VALUES[matcher.name]
                found += [f"{matcher.name} is never {value}" for value in sorted(unknown)]
    for part in expressions:
        modifier = getattr(part, "modifier", None)
        matching = getattr(modifier, "matching", modifier)
        named = {*(getattr(matching, "labels", None) or ())}
        found += [f"no label {label} to group by" for label in sorted(named - labels)]
    return found


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_every_metric_and_label_exists(where: str, query: str, known: Mapping[str, Family]) -> None:
    assert faults(query, known) == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("headrace_worker", "no metric headrace_worker"),
        ("rate(headrace_requests[1m])", "no metric headrace_requests"),
        ("headrace_queue_wait_seconds", "no metric headrace_queue_wait_seconds"),
        ('headrace_workers{pod="x"}', "headrace_workers has no label pod"),
        ('up{model="x"}', "up has no label model"),
        ("sum by (dialect) (headrace_workers)", "no label dialect to group by"),
        ("up * on (model) up", "no label model to group by"),
        ('headrace_queued_requests{class="live"}', "class is never live"),
        ('headrace_refusals_total{reason=~"queue_length|full"}', "reason is never full"),
    ],
)
def test_what_does_not_exist_is_seen(query: str, fault: str, known: Mapping[str, Family]) -> None:
    assert faults(query, known) == [fault]


def test_the_page_says_what_there_is() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.metrics_page"


def test_pages_name_no_other_metrics(known: Mapping[str, Family]) -> None:
    named: dict[str, str] = {}
    for path in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        for name in re.findall(r"\bheadrace_[a-z_]+[a-z]\b", path.read_text()):
            named[name] = path.name
    unknown = {
        name: where
        for name, where in named.items()
        if name not in known and family_of(name, known) is None
    }
    assert unknown == {}


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_it_means_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    assert f"\n### {name}\n" in RUNBOOK


def test_what_must_be_seen_within_fifteen_seconds_is() -> None:
    """A scrape and an evaluation; the rest is what a figure takes to change."""
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    seconds = {
        name: int(value.removesuffix("s"))
        for name, value in prometheus["global"].items()
        if name != "scrape_timeout"
    }
    (group,) = RULES["groups"]
    assert group["interval"] == f"{seconds['evaluation_interval']}s"
    for name in ("HeadraceWorkerGone", "HeadraceQueueFull", "HeadraceAccountExhausted"):
        assert "for" not in ALERTS[name]
    assert seconds["scrape_interval"] + seconds["evaluation_interval"] <= 10


def test_the_dashboard_has_a_place_for_every_panel() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_events_that_the_page_names_are_logged() -> None:
    log = RUNBOOK[RUNBOOK.index("## Logs") : RUNBOOK.index("## Traces")]
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", log))
    code = "".join(
        path.read_text()
        for package in ("ingress", "schemas", "workers")
        for path in (ROOT / package).rglob("*.py")
    )
    outcomes = {f"job.{outcome}" for outcome in ("failed", "cancelled", "interrupted", "yielded")}
    assert len(named) > 15
    assert {name for name in named - outcomes if f'"{name}"' not in code} == set()

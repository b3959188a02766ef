"""The page about metrics, generated from the registries of the processes that have them.

`python -m tests.metrics_page` writes `docs/metrics.md` anew; a test fails while it is stale.
"""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from ingress.app import build_services
from ingress.batch.metrics import BatcherMetrics
from ingress.metrics import IngressMetrics
from ingress.settings import IngressSettings
from ingress.state_metrics import show_state
from schemas.process_metrics import ProcessMetrics, StateCollector
from schemas.transport.memory import MemoryTransport
from workers.metrics import WorkerMetrics

PAGE: Final = Path(__file__).parent.parent / "docs" / "metrics.md"

_HEAD: Final = """\
# Metrics

Every process answers `GET /metrics` in Prometheus' text format: an ingress, and `headrace up`, on
the port that it serves; a worker and a batcher on `--metrics-port`, which listens on loopback
unless `--metrics-host` says otherwise. There is no key on it; keep it from the outside at the
proxy, as the one in `deploy/haproxy` does not pass it on.

An ingress of [several processes](configuration.md#several-processes) tells the samples of all of
them, whichever is asked, each with the label `process`.

Times are in seconds. Labels have few values, which are known beforehand, and never an id of
anything. `class` is `interactive` or `batch`. Nothing is counted per token: what a request was
like is written down once, when it is over, and what is a state is looked up when Prometheus asks.
Of a model that was seen once there are samples as long as the process lives, so an alert need not
guess what an absent one means. What a batcher shares with an ingress it counts for the lines of
batches.

A worker passes SGLang's own metrics on, under their own names (`sglang:…`), if SGLang is told to
have any: `--engine-arg enable_metrics=true`. They cost it a little, so they are off by default.

`up` and the labels `job` and `instance` are Prometheus' own. The queries in the
dashboard (`deploy/grafana`) and in the alerts (`deploy/prometheus`) are held against this table by
a test. What to do when one fires is in [operations.md](operations.md#alerts).
"""


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: As samples have it; of a histogram without what follows it.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str
    processes: tuple[str, ...]


def catalogue() -> Mapping[str, Family]:
    """Every metric of ours, by name."""
    return asyncio.run(_catalogue())


async def _catalogue() -> Mapping[str, Family]:
    ingress = IngressMetrics()
    transport = MemoryTransport()
    show_state(build_services(IngressSettings(), transport.dispatcher(), metrics=ingress))
    worker = WorkerMetrics()
    worker.info.info({"model": "m", "engine": "scripted"})
    source = transport.job_source(model="m", slots=1)
    ProcessMetrics(worker.registry).watch(source)
    await source.close()
    batcher = BatcherMetrics()
    found: dict[str, Family] = {}
    registries = {
        "ingress": (ingress.registry,),
        "batcher": (batcher.registry, ingress.registry),
        "worker": (worker.registry,),
    }
    for process, shown in registries.items():
        for registry in shown:
            for family in _families(registry):
                known = found.get(family.name, family)
                found[family.name] = known._replace(processes=(*known.processes, process))
    return found


def _families(registry: CollectorRegistry) -> Iterator[Family]:
    for collector in tuple(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            for metric in collector.describe():
                labels = collector._labelnames
                if metric.type == "info":  # its labels are its value
                    labels = tuple(next(iter(collector.collect())).samples[0].labels)
                yield _family(metric, labels)
        elif isinstance(collector, StateCollector):
            for metric in collector.describe():
                yield _family(metric, metric._labelnames)  # type: ignore[attr-defined]


def _family(metric: Metric, labels: tuple[str, ...]) -> Family:
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return Family(metric.name + suffix, metric.type, tuple(labels), metric.documentation, ())


def page() -> str:
    """What `docs/metrics.md` is to say."""
    lines = [_HEAD]
    titles = {
        "Requests": lambda family: "worker" not in family.processes and "_batch" not in family.name,
        "Batches": lambda family: family.processes == ("batcher",),
        "Workers": lambda family: family.processes == ("worker",),
        "Every process": lambda family: len(family.processes) == 3,
    }
    left = dict(catalogue())
    for title, belongs in titles.items():
        lines += [
            f"## {title}",
            "",
            "| metric | type | labels | of | meaning |",
            "| - | - | - | - | - |",
        ]
        for name in sorted(name for name, family in left.items() if belongs(family)):
            family = left.pop(name)
            labels = ", ".join(f"`{label}`" for label in family.labels)
            of = "all" if len(family.processes) == 3 else ", ".join(family.processes)
            lines.append(f"| `{name}` | {family.type} | {labels} | {of} | {family.meaning} |")
        lines.append("")
    assert not left, left
    lines += [
        "Every process also has `process_…` (memory, CPU, open files, start) and `python_gc_…`, as",
        "Prometheus' Python library keeps them.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())

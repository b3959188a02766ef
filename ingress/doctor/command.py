"""`headrace doctor ingress | worker | batcher`: looks at all that such a process needs.

It takes the options and variables of that process, so that it runs where that does, unchanged.
Nothing that it writes stays: a queue, a blob and a message of its own, which are removed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, Final

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ingress.doctor.access import (
    address_findings,
    config_findings,
    key_findings,
    together_findings,
)
from ingress.doctor.broker import broker_findings, management_findings
from ingress.doctor.finding import Finding, failed, warn
from ingress.doctor.machine import (
    gpu_memory,
    open_files_finding,
    port_finding,
    shared_memory_finding,
)
from ingress.doctor.model import model_findings, upstream_findings
from ingress.doctor.options_read import lenient, read_options
from ingress.doctor.store import blob_findings, store_findings
from schemas.options import option, stacked

_MARKS: Final = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}
_PROCESSES: Final = ("ingress", "worker", "batcher")


doctor_options = stacked(
    option(
        "--management-url",
        env="MANAGEMENT_URL",
        help="The broker's management API, such as http://user:password@host:15672, to look at "
        "alarms and nodes too. Give it by its variable.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts."),
)
"""Of its own, beside those of the process."""


class Doctor(click.Group):
    """A command for each process, made of that one's own options when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PROCESSES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group="headrace.commands", name=cmd_name):
            if cmd_name in _PROCESSES:
                return _doctor_of(point.load())
        return None


def _doctor_of(command: click.Command) -> click.Command:
    @doctor_options
    def examine(management_url: str | None, as_json: bool, **given: Any) -> None:
        ctx = click.get_current_context()
        values, findings = read_options(command, ctx, given)
        with _only_findings():
            findings += asyncio.run(_examined(command.name or "", values, management_url))
        _print(findings, as_json)
        if failed(findings):
            ctx.exit(1)

    made = click.command(
        command.name, help=f"Look at what headrace {command.name} needs; it starts nothing."
    )(examine)
    made.params = [*map(lenient, command.params), *made.params]
    return made


doctor = Doctor(
    "doctor",
    help="Check broker, stores, model, ports and clocks, and say what to do.\n\n"
    "Takes the options and variables of the process that it is about. Exit status 1: something "
    "must be put right.",
)


@contextmanager
def _only_findings() -> Iterator[None]:
    """Nothing else is said meanwhile: libraries log what a finding tells better."""
    libraries = [logging.getLogger(name) for name in ("aiormq", "aio_pika")]
    before = [library.level for library in libraries]
    for library in libraries:
        library.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for library, level in zip(libraries, before, strict=True):
            library.setLevel(level)


async def _examined(process: str, values: dict[str, Any], management: str | None) -> list[Finding]:
    findings: list[Finding] = []
    if process == "ingress":
        findings += await _of_ingress(values)
    if process == "worker":
        findings += await _of_worker(values)
    elif "config" in values:
        findings += config_findings(values["config"])
    if values.get("metrics_port"):
        host, port = values.get("metrics_host") or "127.0.0.1", values["metrics_port"]
        findings.append(await port_finding(host, port, "/metrics", "headrace_"))
    blobs = values.get("blobs")
    if values.get("amqp_url"):
        findings += await broker_findings(values["amqp_url"], blobs=blobs is not None)
    if management:
        findings += await management_findings(management)
    if values.get("database"):
        findings += await store_findings(values["database"])
    if blobs is not None:
        findings += await blob_findings(blobs)
    elif "blobs" in values and process != "batcher":
        advice = "Give --blobs for files and batches, and for requests above 256 KiB."
        findings.append(warn("blobs", "there is no blob store", advice))
    return findings


async def _of_ingress(values: dict[str, Any]) -> list[Finding]:
    findings = []
    if {"host", "port"} <= values.keys():
        place = values["host"], values["port"]
        findings.append(await port_finding(*place, "/health/live", '"live"'))
        findings += address_findings(values.get("public_url"), values["host"])
    if "max_concurrent" in values:
        findings.append(open_files_finding(values["max_concurrent"]))
    given = (values.get("admin_key"), values.get("console_key"))
    findings += key_findings([*(values.get("api_keys") or ()), *filter(None, given)])
    if _whole(values):
        findings += together_findings(values)
    return findings


def _whole(values: dict[str, Any]) -> bool:
    """Whether no option was wrong, so that they can be looked at together."""
    from ingress.commands import ingress

    return {option.name for option in ingress.params} <= values.keys()


async def _of_worker(values: dict[str, Any]) -> list[Finding]:
    model, url = values.get("model"), values.get("upstream_url")
    if model is None:
        return []
    match values.get("engine"):
        case "upstream" if url:
            return await upstream_findings(url, values.get("upstream_api_key"), model)
        case "sglang":
            gpus = await gpu_memory()
            findings = model_findings(model, values.get("engine_args") or {}, gpus)
            return [*findings, shared_memory_finding()]
    return []


def _print(findings: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        told = {"ok": not failed(findings), "findings": findings}
        click.echo(orjson.dumps(told, default=_plain).decode())
        return
    table = Table("", "what", "found", box=None, pad_edge=False)
    for finding in findings:
        mark, style = _MARKS[finding.state]
        found = Text(finding.text)
        if finding.advice:
            found.append(f"\n→ {finding.advice}", style="dim")
        table.add_row(Text(mark, style=style), finding.about, found)
    console = Console(highlight=False)
    console.print(table)
    worst = [sum(f.state == state for f in findings) for state in ("fail", "warn")]
    console.print(f"\n{worst[0]} to put right, {worst[1]} to look at, {len(findings)} in all.")


def _plain(finding: Finding) -> dict[str, str]:
    return {name: getattr(finding, name) for name in ("about", "state", "text", "advice")}

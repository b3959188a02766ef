"""The broker: what every process needs of it, and what its management API tells besides."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
import orjson

from ingress.doctor.finding import Finding, clock_finding, fail, ok, warn
from schemas.transport.rabbit_probe import Probed, Trouble, probe

OLDEST: Final = (3, 10)
_LIMIT_PER_QUEUE: Final = (3, 12)
"""Since then a queue says itself how long a worker may hold a Job."""

_SMALL: Final = 1 << 20
_LARGE: Final = 64 << 20
"""What must get through: with a blob store, and without one."""

_ADVICE: Final[dict[Trouble, str]] = {
    "unreachable": "Check host, port, TLS (amqps://) and the virtual host in HEADRACE_AMQP_URL, "
    "and that the broker runs.",
    "credentials": "Check user and password in HEADRACE_AMQP_URL; odd characters are "
    "percent-encoded. RabbitMQ's user guest may connect from its own machine only.",
    "permissions": r"rabbitmqctl set_permissions -p VHOST USER '^headrace\..*' '.*' '.*'",
    "topology": "Give Headrace a virtual host of its own: rabbitmqctl add_vhost headrace",
    "quorum": "Allow quorum queues: they keep requests when a node is lost.",
    "blocked": "See rabbitmq-diagnostics alarms; free memory or disk, or raise "
    "vm_memory_high_watermark or lower disk_free_limit.",
    "message_size": "Raise max_message_size (67108864 without a blob store), or give --blobs.",
}

_TIMEOUT = aiohttp.ClientTimeout(total=10)


async def broker_findings(urls: str, *, blobs: bool, step_s: float = 10.0) -> list[Finding]:
    """Whether each node does what is asked of it, each thing within `step_s`."""
    nodes = await probe(urls, message_bytes=_SMALL if blobs else _LARGE, step_s=step_s)
    findings = [finding for node in nodes for finding in _node(node)]
    if any(node.trouble is None for node in nodes):
        # Whoever finds one node down goes to the next.
        findings = [
            warn(found.about, found.text, found.advice)
            if found.state == "fail" and "cannot be reached" in found.text
            else found
            for found in findings
        ]
    return findings


def _node(node: Probed) -> list[Finding]:
    findings = []
    if node.product:
        findings.append(_version(node))
    if node.trouble is not None:
        return [*findings, fail("broker", f"{node.place}: {node.reason}", _ADVICE[node.trouble])]
    took = f"a message is confirmed within {node.round_trip_s * 1000:.1f} ms"
    text = f"{node.place}: permissions, quorum queues and message size are right; {took}"
    return [*findings, ok("broker", text)]


def _version(node: Probed) -> Finding:
    numbers = tuple(int(part) for part in node.version.split(".")[:2] if part.isdigit())
    what = f"{node.place}: {node.product} {node.version}"
    if node.product != "RabbitMQ" or len(numbers) < len(OLDEST):
        return warn("broker", f"{what} is unknown here", "Headrace is made for RabbitMQ.")
    if numbers < OLDEST:
        return fail("broker", f"{what} is too old", "Install RabbitMQ 3.10 or newer; best is 4.")
    if numbers < _LIMIT_PER_QUEUE:
        return warn(
            "broker",
            f"{what} takes jobs from workers after its consumer_timeout, which it does not tell",
            "See that rabbitmqctl environment has {consumer_timeout,7200000} or more, as in "
            "deploy/rabbitmq/rabbitmq.conf; or install RabbitMQ 3.12 or newer.",
        )
    return ok("broker", f"{what}; its queues say themselves how long a job may take")


async def management_findings(url: str) -> list[Finding]:
    """What the management API tells of alarms, nodes and the clock.

    Args:
        url: Such as `http://user:password@host:15672`.
    """
    parts = urlsplit(url)
    base = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session,
            session.get(f"{base}/api/nodes") as answer,
        ):
            status, date = answer.status, answer.headers.get("Date")
            body = await answer.read()
            now = datetime.now(UTC)
    except (TimeoutError, aiohttp.ClientError, ValueError, OSError) as error:
        advice = "Check --management-url; rabbitmq-plugins enable rabbitmq_management"
        return [fail("management", f"it cannot be asked ({type(error).__name__})", advice)]
    findings = [] if date is None else [_clock(date, now)]
    if status in (401, 403):
        advice = "rabbitmqctl set_user_tags USER monitoring"
        return [*findings, fail("management", "its user may not look at nodes", advice)]
    try:
        nodes: list[dict[str, Any]] = orjson.loads(body)
        return [*findings, *(finding for node in nodes for finding in _health(node))]
    except (orjson.JSONDecodeError, TypeError, AttributeError):
        advice = "Check --management-url: it is like http://user:password@host:15672"
        return [*findings, fail("management", f"it answers {status}, and not with nodes", advice)]


def _clock(date: str, now: datetime) -> Finding:
    ahead_s = (now - parsedate_to_datetime(date)).total_seconds()
    return clock_finding("clock", ahead_s - 0.5, "the broker's", exact_to_s=0.5)


def _health(node: dict[str, Any]) -> list[Finding]:
    name = node.get("name", "?")
    if not node.get("running"):
        return [warn("management", f"the node {name} is down", "Start it, or forget it.")]
    findings = []
    for field, what in (("mem_alarm", "memory"), ("disk_free_alarm", "disk")):
        if node.get(field):
            text = f"the node {name} has an alarm about its {what}: nobody can publish"
            findings.append(fail("management", text, _ADVICE["blocked"]))
    if node.get("partitions"):
        advice = "Heal the partition: rabbitmq-diagnostics cluster_status"
        findings.append(fail("management", f"the node {name} is cut off from others", advice))
    used, most = node.get("fd_used") or 0, node.get("fd_total") or 0
    if most and used > 0.8 * most:
        advice = "Raise its open-file limit (ulimit -n, LimitNOFILE)."
        findings.append(
            warn("management", f"the node {name} has {used} of {most} files open", advice)
        )
    return findings or [ok("management", f"the node {name} is well")]

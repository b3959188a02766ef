"""A batch whose batchers, workers, ingress pods and broker are killed until it has ended.

Its files are fetched and read as a client would. Whatever was killed when, every line must be in
them once, those that were answered with what they are answered unharmed.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
import orjson

from ingress.stores.sql import SqlStore
from tests.chaos.fleet import Fleet, running_fleet
from tests.chaos.plan import Injury, Victim, each_then_at_random
from tests.chaos.report import Report
from tests.chaos.trial import READY_LIMIT_S, Progress, Settings

_WEIGHTS: Mapping[Victim, float] = {"batcher": 4, "worker": 3, "ingress": 2, "broker": 0.4}
_BATCHERS = 2
_MOVING_S = 6.0
"""Lines that lost a worker get a moment on another before that is killed: one that loses two in a
row is taken for what kills them, and rightly ends."""

_LINE_S = 0.5
_LOOK_S = 0.3
_ENDED = {"failed", "completed", "expired", "cancelled"}


class _Client:
    """Asks whichever pod is up, again and again."""

    def __init__(self, fleet: Fleet, http: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._http = http

    async def ask(self, method: str, path: str, **request: Any) -> bytes:
        """The body of a good answer."""
        give_up_at = time.monotonic() + READY_LIMIT_S
        while True:
            for pod in [unit.name for unit in self._fleet.pods if unit.ready]:
                try:
                    url = self._fleet.urls[pod] + path
                    async with self._http.request(method, url, **request) as answer:
                        body = await answer.read()
                        if answer.status == 200:
                            return body
                        if answer.status < 500:
                            raise AssertionError(f"{method} {path}: {answer.status} {body[:500]!r}")
                except (aiohttp.ClientError, TimeoutError, OSError):
                    continue
            assert time.monotonic() < give_up_at, f"nobody answers {method} {path}"
            await asyncio.sleep(_LOOK_S)

    async def json(self, method: str, path: str, **request: Any) -> Any:
        return orjson.loads(await self.ask(method, path, **request))


async def batch(settings: Settings, progress: Progress) -> Report:
    """A batch that everything is killed around; cancelled or expired in the middle if asked for."""
    began = time.monotonic()
    report = Report(
        scenario="batch",
        engine=settings.engine,
        seed=settings.seed,
        settings={
            name: getattr(settings, name)
            for name in ("lines", "ending", "workers", "pods", "concurrency", "kills")
        },
        began=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    progress.stage(
        f"starting {settings.workers} workers, {_BATCHERS} batchers, {settings.pods} pods"
    )
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=5)
    async with (
        running_fleet(
            engine=settings.engine,
            workers=settings.workers,
            pods=settings.pods,
            concurrency=settings.concurrency,
            batchers=_BATCHERS,
            logs=settings.logs,
        ) as fleet,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        client = _Client(fleet, http)
        batch_id = await _created(fleet, client, settings.lines)
        plan = each_then_at_random(
            _WEIGHTS, seed=settings.seed, kills=settings.kills, pace_s=settings.pace_s
        )
        to_see = {injury.victim for injury in plan[: len(_WEIGHTS)]}
        progress.stage("killing", len(plan))
        killing = asyncio.create_task(_kill(fleet, plan, progress))
        try:
            ended = await _followed(fleet, client, batch_id, settings, killing, to_see)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        await fleet.settled(timeout_s=READY_LIMIT_S)
        files = {
            name: await _lines(client, ended[f"{name}_file_id"]) for name in ("output", "error")
        }
        _judge(report, settings, ended, files)
        await _require_clean(report, fleet, batch_id)
        killed = Counter(blow.victim for blow in fleet.blows)
        report.figures["injuries"] = ", ".join(f"{n} {name}" for name, n in sorted(killed.items()))
        report.figures["starts of batchers"] = sum(unit.starts for unit in fleet.batchers)
        report.require(
            "every kind of process that was to be killed was", to_see <= set(killed), f"{to_see}"
        )
        report.alarms += fleet.journal.alarms[:20]
        first = fleet.blows[0].at if fleet.blows else 0.0
        report.injuries += [f"{b.at - first:9.2f} s  {b.victim:8} {b.unit}" for b in fleet.blows]
    report.duration_s = round(time.monotonic() - began, 1)
    return report


def _text(number: int) -> str:
    return f"line {number} says one two three four five six seven eight nine ten {number * number}"


async def _created(fleet: Fleet, client: _Client, lines: int) -> str:
    """Upload an input and make a batch of it."""
    url = "/v1/chat/completions"
    body = b"\n".join(
        orjson.dumps(
            {
                "custom_id": f"id-{number}",
                "method": "POST",
                "url": url,
                "body": {
                    "model": fleet.model,
                    "messages": [{"role": "user", "content": f"[[say:{_text(number)}]] [[slow]]"}],
                },
            }
        )
        for number in range(lines)
    )
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", body, filename="input.jsonl")
    uploaded = await client.json("POST", "/v1/files", data=form)
    made = await client.json(
        "POST",
        "/v1/batches",
        json={"input_file_id": uploaded["id"], "endpoint": url, "completion_window": "24h"},
    )
    batch_id: str = made["id"]
    return batch_id


async def _kill(fleet: Fleet, plan: Sequence[Injury], progress: Progress) -> None:
    for injury in plan:
        await asyncio.sleep(injury.pause_s)
        if injury.victim == "worker":
            last = max((b.at for b in fleet.blows if b.victim == "worker"), default=0.0)
            await asyncio.sleep(last + _MOVING_S - time.monotonic())
            await fleet.until(
                lambda: len(fleet.ready_workers()) >= 2, READY_LIMIT_S, "two workers are ready"
            )
        if injury.victim == "batcher":
            await fleet.until(
                lambda: all(unit.ready for unit in fleet.batchers), READY_LIMIT_S, "batchers are"
            )
        give_up_at = time.monotonic() + READY_LIMIT_S
        while await fleet.injure(injury) is None and time.monotonic() < give_up_at:
            await asyncio.sleep(0.05)
        progress.advance()


async def _followed(
    fleet: Fleet,
    client: _Client,
    batch_id: str,
    settings: Settings,
    killing: asyncio.Task[None],
    to_see: set[Victim],
) -> dict[str, Any]:
    """The batch once it has ended; on the way, it is cancelled or its time is over.

    That is once every kind of process has been killed, and at the latest in the middle of it. All
    batchers are killed then, too: whoever ends it has to find out what was wanted.
    """
    limit_s = 300 + settings.lines * _LINE_S
    give_up_at = time.monotonic() + limit_s
    interfered = settings.ending == "complete"
    while True:
        found: dict[str, Any] = await client.json("GET", f"/v1/batches/{batch_id}")
        counts = found["request_counts"]
        if found["status"] in _ENDED:
            return found
        if killing.done():
            killing.result()
        seen = to_see <= {blow.victim for blow in fleet.blows}
        if not interfered and counts["completed"] > settings.lines // (8 if seen else 2):
            interfered = True
            if settings.ending == "cancel":
                await client.json("POST", f"/v1/batches/{batch_id}/cancel")
            else:
                await _expire(fleet, batch_id)
            for number, unit in enumerate(fleet.batchers):
                if (blow := unit.kill("batcher", -number)) is not None:
                    fleet.blows.append(blow)
        assert time.monotonic() < give_up_at, f"not ended in {limit_s} s: {found}"
        await asyncio.sleep(_LOOK_S)


async def _expire(fleet: Fleet, batch_id: str) -> None:
    """Have its time be over in a moment; whoever runs it reads that when it is taken on."""
    store = await SqlStore.open(fleet.database)
    try:
        await store.change_batch(
            batch_id, lambda b: msgspec.structs.replace(b, expires_at=time.time() + 1)
        )
    finally:
        await store.close()


async def _lines(client: _Client, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = await client.ask("GET", f"/v1/files/{file_id}/content")
    return [orjson.loads(line) for line in content.splitlines()]


def _judge(
    report: Report,
    settings: Settings,
    ended: dict[str, Any],
    files: Mapping[str, list[dict[str, Any]]],
) -> None:
    seen = Counter(line["custom_id"] for lines in files.values() for line in lines)
    wanted = {f"id-{number}" for number in range(settings.lines)}
    lost, twice = wanted - set(seen), [name for name, n in seen.items() if n > 1]
    counts = ended["request_counts"]
    report.figures |= {
        "status": ended["status"],
        "counts": ", ".join(f"{n} {name}" for name, n in counts.items()),
        "lines of the files": f"{len(files['output'])} and {len(files['error'])}",
    }
    status = {"complete": "completed", "cancel": "cancelled", "expire": "expired"}
    report.require("the batch ends as it should", ended["status"] == status[settings.ending])
    if settings.ending != "complete":
        in_the_middle = 0 < counts["completed"] < settings.lines
        report.require("it ended in the middle", in_the_middle)
    report.require(
        "every line is in one of the files, once",
        not lost and not twice and set(seen) == wanted,
        f"{len(lost)} lost, {len(twice)} twice",
    )
    report.require(
        "the counts are those of the files",
        (counts["total"], counts["completed"], counts["failed"])
        == (settings.lines, len(files["output"]), len(files["error"])),
    )
    wrong = [
        line["custom_id"]
        for line in files["output"]
        if line["response"]["body"]["choices"][0]["message"]["content"]
        != _text(int(line["custom_id"].removeprefix("id-")))
    ]
    report.require("every answer is as unharmed", not wrong, f"{len(wrong)} are not: {wrong[:5]}")
    codes = Counter(
        line["error"]["code"] if line["error"] else line["response"]["body"]["error"]["code"]
        for line in files["error"]
    )
    told = {"complete": set(), "cancel": {"batch_cancelled"}, "expire": {"batch_expired"}}
    report.require(
        "no line fails but those that were not executed",
        set(codes) <= told[settings.ending],
        ", ".join(f"{n} {code}" for code, n in codes.items()),
    )
    tokens = sum(line["response"]["body"]["usage"]["total_tokens"] for line in files["output"])
    report.require("its usage is that of its answers", ended["usage"]["total_tokens"] == tokens)


async def _require_clean(report: Report, fleet: Fleet, batch_id: str) -> None:
    """Nothing of the batch is left but its files."""
    store = await SqlStore.open(fleet.database)
    try:
        left = await store.claim("nobody", now=time.time() + 1e6, lease_s=0.1)
        results = [line async for line in store.committed(batch_id)]
    finally:
        await store.close()
    report.require("no batch is left to run", left is None)
    report.figures["results not dropped yet, which a sweep will do"] = len(results)

"""What requires zero data retention is nowhere to be found when it is over, however it ended.

Everything runs as an operator starts it: processes with log files, a broker, a database, a folder
of blobs, a folder for temporary files. Every text of every request, and what the engine made of it,
is a canary; afterwards all of that is searched. So is a service with leaks, to show that it would
be found.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import orjson
import psutil
import pytest
from PIL import Image, PngImagePlugin

from schemas.transport import topology
from tests.fixtures.broker import BrokerNode
from tests.fixtures.canary import Leak, Search, canary
from tests.fixtures.planted import PLANTS
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Process, headrace, wait_ready
from tests.fixtures.stack import until

pytestmark = pytest.mark.broker

CHAT = "/v1/chat/completions"
ZDR = {"wafer-zdr": "required"}
WORKERS = 3


class Canaries(dict[str, str]):
    """Made as they are asked for, each under the name of what it is part of."""

    def __missing__(self, name: str) -> str:
        self[name] = canary("".join(filter(str.isalpha, name)))
        return self[name]


@dataclass
class Service:
    """Its processes, and where they may leave something behind."""

    home: Path
    broker: BrokerNode
    model: str
    url: str
    pages: Mapping[str, Process]
    http: httpx.AsyncClient
    workers: Sequence[Process]
    zdr: bool = True

    @property
    def headers(self) -> dict[str, str]:
        return ZDR if self.zdr else {}

    def body(self, *messages: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, **more}

    async def ask(
        self, body: Any, *, path: str = CHAT, status: int = 200, **headers: str
    ) -> httpx.Response:
        response = await self.http.post(path, json=body, headers={**self.headers, **headers})
        assert response.status_code == status, response.text
        return response

    async def search(self, canaries: Mapping[str, str]) -> list[Leak]:
        """All that is left of them on any disk, in any queue, on any page."""
        search = Search(canaries)
        found = set(search.files([self.home, self.broker.directory]))
        connection = await aio_pika.connect(self.broker.url)
        async with connection, connection.channel() as channel:
            for name, count in await self.broker.rows("queues", "name", "messages"):
                if count == "0" or name.startswith("headrace.reply"):
                    continue
                queue = await channel.get_queue(name, ensure=False)
                while message := await queue.get(fail=False):
                    told = repr(message.properties).encode()
                    found |= set(search.text(f"queue {name}", message.body + told))
        for page, process in self.pages.items():
            if process.process.returncode is None:
                found |= set(search.text(page, (await self.http.get(page)).content))
        return sorted(found)

    def logs(self, canaries: Mapping[str, str]) -> list[Leak]:
        return sorted(Search(canaries).files(self.home.glob("*.log")))


@asynccontextmanager
async def running(
    home: Path, broker: BrokerNode, model: str, key: str, *, workers: int, module: str = "ingress"
) -> AsyncIterator[Service]:
    """An ingress that takes a key, and workers, with all that they write below `home`."""
    _lay_out(home, model)
    env = {"TMPDIR": str(home / "tmp"), "HEADRACE_API_KEY": key}
    stored = ("--blobs", str(home / "blobs"), "--log-level", "debug", "--amqp-url", broker.url)
    database = ("--database", f"sqlite:///{home / 'headrace.db'}")
    port, *ports = (free_port() for _ in range(workers + 1))
    url = f"http://127.0.0.1:{port}"

    async with AsyncExitStack() as exits:

        async def start(name: str, *args: str) -> Process:
            log = home / f"{name}.log"
            return await exits.enter_async_context(
                headrace(*args, *stored, log=log, env=env, module=module)
            )

        configured = ("--port", str(port), "--config", str(home / "headrace.yaml"), *database)
        ingress = await start("ingress", "ingress", *configured)
        hired = []
        for number, own in enumerate(ports):
            scripted = ("--engine", "scripted", "--model", model, "--no-supervise", "--heartbeat")
            metrics = ("0.2", "--metrics-port", str(own))
            hired.append(await start(f"worker-{number}", "worker", *scripted, *metrics))
        await wait_ready(url, ingress)
        for worker in hired:
            await until(lambda worker=worker: "worker.ready" in worker.output(), timeout_s=30)
        addresses = [url, *(f"http://127.0.0.1:{own}" for own in ports)]
        processes = zip(addresses, (ingress, *hired), strict=True)
        pages = {f"{address}/metrics": process for address, process in processes}
        http = await exits.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        http.headers["authorization"] = f"Bearer {key}"
        yield Service(home, broker, model, url, pages, http, hired)
    await _empty(broker)


async def _empty(broker: BrokerNode) -> None:
    """Leave no message to other tests: there is nobody here who would have taken usage records."""
    connection = await aio_pika.connect(broker.url)
    async with connection, connection.channel() as channel:
        for name, count in await broker.rows("queues", "name", "messages"):
            if count != "0":
                await (await channel.get_queue(name, ensure=False)).purge()


def _lay_out(home: Path, model: str) -> None:
    home.mkdir()
    for folder in ("blobs", "tmp"):
        (home / folder).mkdir()
    (home / "headrace.yaml").write_text(
        f"models: [{{id: {model}, zdr_supported: true, capabilities: {{vision: true}}}}]\n"
    )


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def picture(secret: str) -> dict[str, Any]:
    """With the secret inside the file."""
    about = PngImagePlugin.PngInfo()
    about.add_text("about", secret)
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG", pnginfo=about)
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def repeated(secret: str) -> str:
    """An expression that the secret three times over matches; it stands in no request."""
    return f"({secret}){{3}}"


async def answered(service: Service, its: Canaries) -> None:
    """Requests that go well, with a canary wherever there is room for one."""
    call = {"name": "look", "arguments": f'{{"at": "{its["argument"]}"}}'}
    schema = {"type": "string", "const": its["schema"]}
    tool = {"type": "object", "properties": {its["property"]: {"type": "string"}}}
    look = {"name": "look", "description": its["tool"], "parameters": tool}
    body = service.body(
        {"role": "system", "content": its["system"]},
        user(its["earlier"]),
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": its["result"]},
        user(f"{its['prompt']} [[say:{its['said']}]]"),
        tools=[{"type": "function", "function": look}],
        stop=[its["stop"]],
        user=its["user"],
        metadata={"about": its["metadata"]},
    )
    for stream in (False, True):
        headers = {"idempotency-key": f"{its['idempotency']}-{stream}"}
        response = await service.ask({**body, "stream": stream}, **headers)
        assert its["said"] in response.text
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    response = await service.ask(service.body(user("so"), response_format=form))
    assert its["schema"] in response.text
    response = await service.ask(service.body(user("so"), regex=repeated(its["part"])))
    its["answer"] = its["part"] * 3
    assert its["answer"] in response.text
    large = f"[[say:large enough]] {its['large']} " + "word " * 100_000
    response = await service.ask(service.body(user(large)))
    assert "large enough" in response.text
    for path, body in (
        ("/v1/messages", {"max_tokens": 9, "messages": [user(its["messages"])]}),
        ("/v1/messages/count_tokens", {"messages": [user(its["count"])]}),
        ("/v1/responses", {"input": its["input"], "instructions": its["instructions"]}),
        ("/v1/completions", {"prompt": list(its["tokens"].encode()), "max_tokens": 9}),
    ):
        await service.ask({"model": service.model, **body}, path=path)


async def refused(service: Service, its: Canaries) -> None:
    """Requests that are wrong, in the eyes of the ingress or of a worker."""
    wrong = its["wrong"]
    for body in (
        service.body(user(wrong), temperature=wrong),
        service.body({"role": wrong, "content": wrong}),
        service.body(user(wrong), tools=[wrong]),
        service.body(user(wrong), regex=f"({wrong}"),
        service.body(user([picture(its["image"])])),  # only the worker knows that it takes none
        service.body(user([{"type": "image_url", "image_url": {"url": f"ftp://{wrong}"}}])),
    ):
        await service.ask(body, status=400)
    await service.ask({"model": wrong, "messages": [user(wrong)]}, status=404)
    broken = f'{{"messages": "{its["broken"]}'.encode()
    response = await service.http.post(CHAT, content=broken, headers=service.headers)
    assert response.status_code == 400
    await service.ask(service.body(user(wrong)), status=401, authorization=its["wrong key"])
    response = await service.http.get(f"/{its['path']}?{its['query']}")
    assert response.status_code == 404


async def failed(service: Service, its: Canaries) -> None:
    """Engines that fail, a client that leaves, messages that no worker can read."""
    await service.ask(service.body(user(f"{its['failed']} [[fail:start]]")), status=500)
    text = f"{its['failed']} [[say:{its['failing']}]][[fail:2]]"
    response = await service.ask(service.body(user(text), stream=True))
    assert "error" in response.text
    body = service.body(user("[[slow]]"), regex=repeated(its["abandoned"]), stream=True)
    async with service.http.stream("POST", CHAT, json=body, headers=service.headers) as stream:
        assert await anext(stream.aiter_lines())
    connection = await aio_pika.connect(service.broker.url)
    async with connection, connection.channel(publisher_confirms=True) as channel:
        jobs = await channel.get_exchange(topology.JOBS_EXCHANGE, ensure=False)
        for content_type in ("application/json", topology.SEALED_TYPE):
            message = aio_pika.Message(
                f'{{"version": 1, "{its["undecodable"]}'.encode(),
                content_type=content_type,
                delivery_mode=aio_pika.DeliveryMode.NOT_PERSISTENT,
            )
            await jobs.publish(message, topology.job_queue(service.model, "transient"))


async def poisonous(service: Service, its: Canaries) -> None:
    """A request that costs two workers their lives, in the middle of its answer."""
    text, words = f"{its['poison']} [[crash:2]]", f"({its['broken off']} ){{3}}"
    body = service.body(user(text), regex=words, stream=True)
    response = await service.ask(body)
    begun = "".join(
        choice["delta"].get("content") or ""
        for line in response.text.splitlines()
        if line.startswith("data: {")
        for choice in orjson.loads(line[6:]).get("choices", ())
    )
    assert begun.split() == [its["broken off"]] * 2, "what had arrived, once"
    assert "error" in response.text
    died = [worker for worker in service.workers if worker.process.returncode is not None]
    assert len(died) == 2


def dead_letters(service: Service) -> Callable[[], Any]:
    async def there() -> bool:
        rows = await service.broker.rows("queues", "name", "messages")
        return [topology.DEAD_QUEUE, "2"] in rows

    return there


@pytest.mark.rule("zdr.nowhere", "zdr.inline", "zdr.dead-letters", "zdr.logs", "zdr.core-files")
async def test_nothing_is_left_of_it_however_it_ends(
    own_broker: BrokerNode, model: str, tmp_path: Path
) -> None:
    its, others, home = Canaries(), Canaries(), tmp_path / "service"
    ingress = home / "ingress.log"
    async with running(home, own_broker, model, its["key"], workers=WORKERS) as service:
        for process in service.pages.values():
            assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_CORE) == (0, 0)
        await answered(service, its)
        await refused(service, its)
        await failed(service, its)
        await until(dead_letters(service), timeout_s=10)
        service.zdr = False  # of others nothing is in the logs
        await answered(service, others)
        await refused(service, others)
        await failed(service, others)
        service.zdr = True
        await poisonous(service, its)
        assert await service.search(its) == []
        kept = {leak.secret for leak in await service.search(others)}
        assert {"prompt", "image"} <= kept, "or this would prove nothing"
    assert service.logs({**its, **{f"other's {name}": text for name, text in others.items()}}) == []
    completed = [line for line in ingress.read_text().splitlines() if "request.completed" in line]
    assert len(completed) > 20


@pytest.mark.rule("zdr.leaks-are-found")
async def test_a_leak_would_be_found(own_broker: BrokerNode, model: str, tmp_path: Path) -> None:
    its = Canaries()
    home = tmp_path / "leaky"
    leaky = "tests.fixtures.planted"
    planted = running(home, own_broker, model, its["key"], workers=1, module=leaky)
    async with planted as service:
        for plant in PLANTS:
            await service.ask(service.body(user(f"{plant} {its[plant]}")))
        await service.ask(service.body(user(its["sound"])))
        await failed(service, its)
        await until(dead_letters(service), timeout_s=10)
        leaks = await service.search(its)
    found = {leak.secret: leak.place for leak in leaks}
    assert found.keys() == {*PLANTS, "undecodable"}
    disk = str(own_broker.directory)
    assert {name: place.startswith(disk) for name, place in found.items()} == {
        name: name == "forgotten" for name in PLANTS
    } | {"undecodable": False}

"""Requests too large for a message, over a real broker: served, and gone from the store after."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from PIL import Image

from schemas.errors import ModelOverloaded
from schemas.model_card import Capabilities
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from schemas.transport.rabbit_dispatcher import RabbitReply
from tests.contract.transport_suite import a_job
from tests.fixtures.broker import Broker, BrokerNode
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Process, headrace, wait_ready
from tests.fixtures.stack import (
    Pod,
    Stack,
    TimeLimits,
    opened,
    rabbit_stack,
    ready,
    run_worker,
    serve_pod,
    sse_data,
    until,
)
from tests.integration.test_rabbit_limits import set_max_message_size
from workers.engines.scripted import ScriptedEngine

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

CHAT = "/v1/chat/completions"
FILLER = "The quick brown fox. " * 20_000
MIB = 1 << 20


def body(model: str, content: Any, *, stream: bool = True, filler: str = FILLER) -> dict[str, Any]:
    messages = [{"role": "system", "content": filler}] if filler else []
    messages.append({"role": "user", "content": content})
    return {"model": model, "stream": stream, "messages": messages}


async def ask(url: str, request: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        return await http.post(CHAT, json=request)


def streamed_text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    *data, done = sse_data(response.content)
    assert done == b"[DONE]", response.text[-400:]
    chunks = [orjson.loads(record) for record in data]
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


def tokens(count: int) -> str:
    return "".join(f"tok{i} " for i in range(count))


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = orjson.loads(response.content)["error"]
    assert isinstance(error, dict)
    return error


class Store:
    """The directory as an operator sees it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self) -> list[Path]:
        return [path for path in self.root.rglob("*") if path.is_file()]

    def is_empty(self) -> bool:
        return not self.files()

    def is_full(self) -> bool:
        """Of something whole."""
        return any(path.suffix != ".part" for path in self.files())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "blobs")


@asynccontextmanager
async def workers_apart(
    url: str,
    engines: Sequence[ScriptedEngine],
    pod: Path,
    roots: Sequence[Path | None],
    **settings: Any,
) -> AsyncIterator[Pod]:
    """A pod and workers that do not see the same store."""
    model = engines[0].card.id
    async with AsyncExitStack() as exits:
        for number, (engine, root) in enumerate(zip(engines, roots, strict=True)):
            source = await RabbitJobSource.connect(
                url,
                model=model,
                slots=engine.slots,
                settings=SourceSettings(blob_patience_s=0.2),
                blobs=opened(root),
            )
            exits.push_async_callback(source.close)
            await exits.enter_async_context(run_worker(engine, source, name=f"worker-{number}"))
        dispatcher = await RabbitDispatcher.connect(url, blobs=opened(pod))
        exits.push_async_callback(dispatcher.close)
        served = await exits.enter_async_context(serve_pod(dispatcher, model=model, **settings))
        await ready(served.services, workers=len(engines))
        yield served


# --- what works -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos() -> list[str]:
    """Three pictures that do not compress; 30 MB as a request has them."""
    noise = random.Random(7).randbytes(1_600 * 1_560 * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (1_600, 1_560), noise).save(file, "PNG", compress_level=0)
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return [url] * 3


async def test_thirty_megabytes_of_images_pass_a_broker_that_takes_sixteen(
    own_broker: BrokerNode, model: str, photos: list[str], store: Store
) -> None:
    await set_max_message_size(own_broker, 16 * MIB)
    capabilities = Capabilities(vision=True, tools=True)
    engine = ScriptedEngine(served_id=model, capabilities=capabilities)
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in photos]
    content = [{"type": "text", "text": "[[k=40 gap=25]]"}, *parts]
    try:
        async with rabbit_stack(own_broker.url, [engine], blobs=store.root) as stack:
            large = asyncio.create_task(ask(stack.url, body(model, content, filler="")))
            await until(store.is_full, timeout_s=30)
            assert sum(path.stat().st_size for path in store.files()) > 20_000_000
            small = await ask(stack.url, body(model, "[[say:small]]", filler=""))
            assert streamed_text(small) == "small"
            assert streamed_text(await large) == tokens(40)
            await until(store.is_empty)
            dispatcher = stack.services.dispatcher
            assert isinstance(dispatcher, RabbitDispatcher)
            assert dispatcher.reconnects == 0
    finally:
        await set_max_message_size(own_broker, 128 * MIB)


async def test_without_a_store_they_are_refused_before_anything_else_is_harmed(
    own_broker: BrokerNode, model: str, store: Store
) -> None:
    await set_max_message_size(own_broker, 16 * MIB)
    try:
        async with rabbit_stack(own_broker.url, [ScriptedEngine(served_id=model)]) as stack:
            neighbour = asyncio.create_task(
                ask(stack.url, body(model, "[[k=100 gap=10]]", filler=""))
            )
            await until(lambda: _running(stack, 1))
            huge = await ask(stack.url, body(model, "hi", filler="x" * 20 * MIB))
            assert huge.status_code == 413
            assert error_of(huge)["code"] == "request_too_large"
            fits = await ask(stack.url, body(model, "[[say:fits]]", filler="x" * (MIB // 2)))
            assert streamed_text(fits) == "fits"
            assert streamed_text(await neighbour) == tokens(100)
    finally:
        await set_max_message_size(own_broker, 128 * MIB)
    assert not store.root.exists()


async def test_a_body_that_is_too_large_is_refused_unread(
    broker: Broker, model: str, store: Store
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine], blobs=store.root) as stack:
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            "content-length: 51000000\r\n\r\n{".encode()
        )
        async with asyncio.timeout(5):
            assert b" 413 " in await reader.readline()
        writer.close()
    assert store.is_empty()


@pytest.mark.parametrize("stream", [False, True])
async def test_small_requests_do_not_touch_the_store(
    broker: Broker, model: str, store: Store, stream: bool
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine], blobs=store.root) as stack:
        shutil.rmtree(store.root)
        answer = await ask(stack.url, body(model, "[[say:x]]", stream=stream, filler="small"))
        assert answer.status_code == 200
    assert not store.root.exists()


# --- every end ------------------------------------------------------------------------------------


async def _running(stack: Stack, count: int) -> bool:
    return await stack.engine.running() == count


@pytest.mark.parametrize(
    ("content", "stream", "status", "code"),
    [
        ("[[k=5 gap=5]]", False, 200, None),
        ("[[k=5 gap=5]]", True, 200, None),
        ("[[fail:start]]", False, 500, "generation_failed"),
        ("[[fail:start]]", True, 500, "generation_failed"),
        ("[[hang:0]]", False, 504, "generation_timeout"),
    ],
)
async def test_answers_and_failures_leave_nothing(
    broker: Broker,
    model: str,
    store: Store,
    content: str,
    stream: bool,
    status: int,
    code: str | None,
) -> None:
    engine = ScriptedEngine(served_id=model)
    limits = TimeLimits(total_s=3.0)
    async with rabbit_stack(broker.url, [engine], blobs=store.root, limits=limits) as stack:
        answering = asyncio.create_task(ask(stack.url, body(model, content, stream=stream)))
        await until(store.is_full)
        answer = await answering
        assert answer.status_code == status, answer.text
        assert code is None or error_of(answer)["code"] == code
        await until(store.is_empty)


async def test_a_failure_in_the_midst_of_a_stream_leaves_nothing(
    broker: Broker, model: str, store: Store
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine], blobs=store.root) as stack:
        answer = await ask(stack.url, body(model, "[[k=9]][[fail:3]]"))
        assert error_code_in(answer) == "generation_failed"
        await until(store.is_empty)


def error_code_in(answer: httpx.Response) -> str:
    """Of a stream that failed after it had begun."""
    assert answer.status_code == 200, answer.text
    *_, last = sse_data(answer.content)
    code = orjson.loads(last)["error"]["code"]
    assert isinstance(code, str)
    return code


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
async def test_a_client_that_leaves_leaves_nothing(
    broker: Broker, model: str, store: Store, phase: str
) -> None:
    engine = ScriptedEngine(served_id=model, slots=1)
    content = "[[k=9000 gap=5]]" if phase == "decode" else "[[k=9 ttft=60000]]"
    async with rabbit_stack(broker.url, [engine], blobs=store.root) as stack:
        leaving = [asyncio.create_task(ask(stack.url, body(model, content)))]
        if phase == "queued":
            await until(lambda: _running(stack, 1))
            leaving.append(asyncio.create_task(ask(stack.url, body(model, content))))
        await until(lambda: phase in {a._generation.phase for a in stack.services.answers})
        await until(lambda: len(store.files()) == len(leaving))
        for task in reversed(leaving):
            task.cancel()
        await until(store.is_empty)
        await until(lambda: _running(stack, 0))
        assert streamed_text(await ask(stack.url, body(model, "[[say:next]]"))) == "next"


async def test_a_full_queue_refuses_and_keeps_nothing(
    broker: Broker, model: str, store: Store
) -> None:
    settings = SourceSettings(max_queued_jobs=10)
    source = await RabbitJobSource.connect(
        broker.url, model=model, slots=1, settings=settings, blobs=opened(store.root)
    )
    dispatcher = await RabbitDispatcher.connect(
        broker.url, DispatcherSettings(max_inline_bytes=100), blobs=opened(store.root)
    )
    try:
        replies: list[RabbitReply] = []
        with pytest.raises(ModelOverloaded):
            while len(replies) < 100:  # the limit of a replicated queue is not exact
                replies.append(await dispatcher.dispatch(a_job(model)))
        assert len(replies) >= 10
        await until(lambda: len(store.files()) == len(replies))
        await replies.pop().close()
        await until(lambda: len(store.files()) == len(replies))
    finally:
        await dispatcher.close()
        await source.close()
    assert store.is_empty()


async def test_shutting_down_leaves_nothing(broker: Broker, model: str, store: Store) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine], blobs=store.root) as stack:
        async with (
            httpx.AsyncClient(base_url=stack.url, timeout=60) as http,
            http.stream("POST", CHAT, json=body(model, "[[k=9000 gap=5]]")) as response,
        ):
            received = response.aiter_bytes()
            await anext(received)
            assert store.is_full()
            stack.services.end_answers()
            rest = [chunk async for chunk in received]
        assert b'"server_shutting_down"' in rest[-1]
        await until(store.is_empty)
        again = asyncio.create_task(ask(stack.url, body(model, "[[k=9000 gap=5]]")))
        await until(lambda: _running(stack, 1))
    assert store.is_empty(), "even what is cut short by the end of the process's loop"
    again.cancel()


# --- stores that are not as they should be --------------------------------------------------------


async def test_a_worker_without_a_store_says_so(
    broker: Broker, model: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with workers_apart(broker.url, [engine], store.root, [None]) as pod:
        answer = await ask(pod.url, body(model, "hi"))
        assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
        assert "HEADRACE_BLOBS" in capsys.readouterr().out
        assert streamed_text(await ask(pod.url, body(model, "[[say:x]]", filler=""))) == "x"
        await until(store.is_empty)


async def test_a_worker_with_another_store_fails_the_request_alone(
    broker: Broker, model: str, store: Store, tmp_path: Path
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with workers_apart(broker.url, [engine], store.root, [tmp_path / "other"]) as pod:
        large, small = await asyncio.gather(
            ask(pod.url, body(model, "hi", stream=False)),
            ask(pod.url, body(model, "[[say:x]]", filler="")),
        )
        assert (large.status_code, error_of(large)["code"]) == (500, "internal_error")
        assert streamed_text(small) == "x"
        await until(store.is_empty)


class Mount:
    """Another path to the store, which can be lost and come back."""

    def __init__(self, path: Path, store: Store) -> None:
        self.path = path
        self._store = store
        store.root.mkdir()
        self.come_back()

    def lose(self) -> None:
        self.path.unlink()

    def come_back(self) -> None:
        self.path.symlink_to(self._store.root)


@pytest.fixture
def mount(store: Store, tmp_path: Path) -> Mount:
    return Mount(tmp_path / "mount", store)


async def test_a_worker_that_lost_its_store_leaves_large_jobs_to_another(
    broker: Broker, model: str, store: Store, mount: Mount
) -> None:
    engines = [ScriptedEngine(served_id=model, slots=8) for _ in range(2)]
    async with workers_apart(broker.url, engines, store.root, [mount.path, store.root]) as pod:
        mount.lose()
        wanted = [f"{i} said" for i in range(6)]
        answers = await asyncio.gather(
            *(ask(pod.url, body(model, f"[[say:{text}]]")) for text in wanted)
        )
        assert [streamed_text(answer) for answer in answers] == wanted
        await until(store.is_empty)


async def test_when_no_worker_has_its_store_the_wait_has_an_end(
    broker: Broker, model: str, store: Store, mount: Mount
) -> None:
    engine = ScriptedEngine(served_id=model)
    limits = TimeLimits(queue_wait_s=1.5)
    async with workers_apart(broker.url, [engine], store.root, [mount.path], limits=limits) as pod:
        mount.lose()
        answer = await ask(pod.url, body(model, "hi"))
        assert (answer.status_code, error_of(answer)["code"]) == (503, "model_overloaded")
        assert int(answer.headers["retry-after"]) > 0
        assert streamed_text(await ask(pod.url, body(model, "[[say:x]]", filler=""))) == "x"
        mount.come_back()
        assert streamed_text(await ask(pod.url, body(model, "[[say:back]]"))) == "back"


async def test_an_ingress_that_lost_its_store_sends_what_the_broker_takes(
    broker: Broker, model: str, store: Store
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine], blobs=store.root) as stack:
        shutil.rmtree(store.root)
        assert streamed_text(await ask(stack.url, body(model, "[[say:inline]]"))) == "inline"


# --- processes ------------------------------------------------------------------------------------


@pytest.fixture
async def workers(
    broker: Broker, model: str, store: Store, tmp_path: Path
) -> AsyncIterator[list[Process]]:
    command = ("worker", "--engine", "scripted", "--model", model, "--no-supervise")
    async with AsyncExitStack() as exits:
        yield [
            await exits.enter_async_context(
                headrace(
                    *(*command, "--amqp-url", broker.url, "--blobs", str(store.root)),
                    log=tmp_path / f"worker-{i}.log",
                )
            )
            for i in range(2)
        ]


@pytest.fixture
async def pod(
    broker: Broker, model: str, store: Store, workers: list[Process]
) -> AsyncIterator[Pod]:
    dispatcher = await RabbitDispatcher.connect(broker.url, blobs=opened(store.root))
    try:
        async with serve_pod(dispatcher, model=model) as served:
            async with asyncio.timeout(30):
                await ready(served.services, workers=len(workers))
            yield served
    finally:
        await dispatcher.close()


async def holder(pod: Pod, workers: list[Process]) -> Process:
    """The worker that is at the one answer under way, once it has begun."""
    await until(lambda: [a._generation.phase for a in pod.services.answers] == ["decode"])
    (answer,) = pod.services.answers
    name = answer._generation.worker
    return next(worker for worker in workers if f'"{name}"' in worker.output())


async def test_a_killed_workers_answer_goes_on_from_the_same_blob(
    pod: Pod, model: str, store: Store, workers: list[Process]
) -> None:
    asking = asyncio.create_task(ask(pod.url, body(model, "[[k=60 gap=20]]")))
    killed = await holder(pod, workers)
    (blob,) = store.files()
    before = blob.stat()
    killed.kill()
    await until(lambda: {a._generation.attempt for a in pod.services.answers} == {2})
    (again,) = store.files()
    assert (again, again.stat().st_ino, again.stat().st_ctime_ns) == (
        blob,
        before.st_ino,
        before.st_ctime_ns,
    )
    assert streamed_text(await asking) == tokens(60)
    await until(store.is_empty)


async def test_when_the_blob_is_gone_too_the_answer_ends_as_failed(
    pod: Pod, model: str, store: Store, workers: list[Process]
) -> None:
    asking = asyncio.create_task(ask(pod.url, body(model, "[[k=90 gap=20]]")))
    killed = await holder(pod, workers)
    neighbour = asyncio.create_task(ask(pod.url, body(model, "[[k=60 gap=20]]", filler="")))
    for blob in store.files():
        blob.unlink()
    killed.kill()
    assert error_code_in(await asking) == "internal_error"
    assert streamed_text(await neighbour) == tokens(60)
    assert streamed_text(await ask(pod.url, body(model, "[[say:next]]"))) == "next"
    await until(store.is_empty)


async def test_what_a_killed_ingress_left_is_swept_by_the_next(
    broker: Broker, model: str, store: Store, workers: list[Process], tmp_path: Path
) -> None:
    def ingress(port: int) -> Any:
        return headrace(
            *("ingress", "--port", str(port), "--model", model, "--amqp-url", broker.url),
            *("--blobs", str(store.root)),
            log=tmp_path / f"ingress-{port}.log",
        )

    del workers  # they are there to answer
    port = free_port()
    async with ingress(port) as first:
        url = f"http://127.0.0.1:{port}"
        await wait_ready(url, first)
        assert streamed_text(await ask(url, body(model, "[[say:served]]"))) == "served"
        await until(store.is_empty)
        asking = asyncio.create_task(ask(url, body(model, "[[k=9000 gap=20]]")))
        await until(store.is_full)
        first.kill()
        with pytest.raises(httpx.TransportError):
            await asking
    (left,) = store.files()
    # As if the time were up: the name says when that is.
    left.rename(left.with_name(f"1000000000-{left.name.partition('-')[2]}"))
    port = free_port()
    async with ingress(port) as second:
        await wait_ready(f"http://127.0.0.1:{port}", second)
        await until(store.is_empty)

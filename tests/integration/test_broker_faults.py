"""What a reader sees of a fault between ingress and worker: nothing, where it can be helped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx
import orjson
import pytest

from ingress.settings import TimeLimits
from schemas.transport import topology
from schemas.transport.rabbit import RabbitDispatcher, RabbitJobSource
from tests.fixtures.broker import BrokerNode, Proxy
from tests.fixtures.stack import Pod, Stack, rabbit_stack, ready, run_worker, serve_pod, until
from workers.engines.scripted import ScriptedEngine

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"


class Answer:
    """What has come of a stream."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 0
        self.finishes: list[str] = []
        self.usage: dict[str, int] = {}
        self.error: dict[str, str] | None = None
        self.done = False

    def take(self, data: str) -> None:
        if data == "[DONE]":
            self.done = True
            return
        chunk = orjson.loads(data)
        self.error = chunk.get("error")
        for choice in chunk.get("choices", ()):
            self.text += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                self.finishes.append(choice["finish_reason"])
        if chunk.get("usage"):
            self.usage = chunk["usage"]

    def check(self, tokens: int) -> None:
        """Every token once and in order, one end, and all of it counted once."""
        assert self.error is None
        assert self.text == "".join(f"tok{n} " for n in range(tokens))
        assert self.done
        assert self.finishes == ["stop"]
        assert self.usage["completion_tokens"] == tokens


async def read_stream(pod: Pod, model: str, content: str, answer: Answer) -> Answer:
    message = {"role": "user", "content": content}
    body = {"model": model, "stream": True, "messages": [message]}
    async with (
        httpx.AsyncClient(base_url=pod.url, timeout=120) as http,
        http.stream("POST", CHAT, json=body) as response,
    ):
        answer.status = response.status_code
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                answer.take(line[6:])
    return answer


@contextlib.asynccontextmanager
async def streaming(
    pods: Sequence[Pod], model: str, tokens: int, *, amid: bool = True
) -> AsyncIterator[None]:
    """Streams that have begun, and that are whole in the end.

    Args:
        amid: What is done meanwhile is over before any of them is.
    """
    answers = [Answer() for _ in range(6)]
    async with asyncio.TaskGroup() as clients:
        for n, answer in enumerate(answers):
            content = f"[[k={tokens} gap=20]]"
            clients.create_task(read_stream(pods[n % len(pods)], model, content, answer))
        await until(lambda: all(answer.text for answer in answers), timeout_s=15)
        yield
        assert not (amid and any(answer.done for answer in answers))
    for answer in answers:
        answer.check(tokens)


def attempts(pods: Sequence[Pod]) -> list[int]:
    return [a._generation.attempt for pod in pods for a in pod.services.answers]


def sources_of(stack: Stack) -> list[RabbitJobSource]:
    sources = [consumer._source for consumer in stack.consumers]
    return [source for source in sources if isinstance(source, RabbitJobSource)]


async def consumers(node: BrokerNode, model: str) -> int:
    queue = topology.job_queue(model, "interactive")
    return (await node.rows("consumers", "queue_name")).count([queue])


@contextlib.asynccontextmanager
async def acknowledgement_timeout(node: BrokerNode) -> AsyncIterator[None]:
    """The broker closes the channel of whoever holds a Job for half a second."""
    await node.set_env(consumer_timeout=500, channel_tick_interval=100)
    try:
        yield
    finally:
        await node.set_env(consumer_timeout=1_800_000, channel_tick_interval=60_000)


async def test_an_acknowledgement_timeout_is_not_noticed(
    own_broker: BrokerNode, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody runs the Job again, not even the worker that gets it, and both serve afterwards."""
    monkeypatch.setattr(topology, "CONSUMER_TIMEOUT_MS", 500)  # for brokers that heed it
    engines = [ScriptedEngine(served_id=model, slots=8) for _ in range(2)]
    async with acknowledgement_timeout(own_broker), rabbit_stack(own_broker.url, engines) as stack:
        prefill = Answer()
        slow = "[[k=5 gap=5 ttft=2000]]"
        asking = asyncio.create_task(read_stream(stack.pods[0], model, slow, prefill))
        async with streaming(stack.pods, model, 125):
            channels_closed = [source for source in sources_of(stack) if source._held]
            await asyncio.sleep(1.5)  # the timeout, and the broker's look at it, pass twice
            assert attempts(stack.pods) == [1] * 7
            assert sum([await engine.running() for engine in engines]) == 7
        prefill = await asking
        prefill.check(5)
        assert channels_closed
        assert not any(source._held for source in sources_of(stack))
        assert all(source.reconnects == 0 for source in sources_of(stack))
        await until(lambda: all(source.connected() for source in sources_of(stack)))
        assert await consumers(own_broker, model) == 2
        async with streaming(stack.pods, model, 20, amid=False):
            pass


async def test_a_broker_that_stops_and_returns_under_load(
    own_broker: BrokerNode, model: str
) -> None:
    engines = [ScriptedEngine(served_id=model, slots=16) for _ in range(2)]
    async with rabbit_stack(own_broker.url, engines, pods=2) as stack:
        async with streaming(stack.pods, model, 400):
            await asyncio.to_thread(own_broker.kill)
            await until(lambda: not any(pod.services.dispatcher.connected() for pod in stack.pods))
            assert await health(stack.pods[0]) == 503
            await asyncio.to_thread(own_broker.start)
            returned_at = asyncio.get_running_loop().time()
            late = await asyncio.create_task(first_served(stack, model))
            assert late - returned_at < 5
        assert await consumers(own_broker, model) == 2
        assert not any(source._held for source in sources_of(stack))


async def first_served(stack: Stack, model: str) -> float:
    """When a new request is first answered."""
    while True:
        answer = await read_stream(stack.pods[0], model, "[[k=3 gap=1]]", Answer())
        if answer.status == 200:
            answer.check(3)
            return asyncio.get_running_loop().time()
        assert answer.status == 503
        await asyncio.sleep(0.1)


@pytest.mark.rule("broker.returns")
async def test_a_virtual_host_that_is_deleted_and_made_again(
    own_broker: BrokerNode, model: str
) -> None:
    """With all its queues, and the connections that were open to it."""

    async def ctl(*arguments: str) -> None:
        await asyncio.to_thread(own_broker.ctl, *arguments)

    async def make() -> None:
        await ctl("add_vhost", model)
        await ctl("set_permissions", "-p", model, "guest", ".*", ".*", ".*")

    await make()
    engine = ScriptedEngine(served_id=model, slots=16)
    async with rabbit_stack(own_broker.url + model, [engine]) as stack:
        async with streaming(stack.pods, model, 150, amid=False):
            await ctl("delete_vhost", model)
            await until(lambda: not stack.services.dispatcher.connected())
            assert await health(stack.pods[0]) == 503
            await make()
            async with asyncio.timeout(10):
                await first_served(stack, model)
        assert not any(source._held for source in sources_of(stack))
    await ctl("delete_vhost", model)


async def test_a_broker_that_stays_away_is_an_honest_failure(
    own_broker: BrokerNode, model: str
) -> None:
    engine = ScriptedEngine(served_id=model, slots=8)
    limits = TimeLimits(queue_wait_s=1, retry_s=1)
    async with rabbit_stack(own_broker.url, [engine], limits=limits) as stack:
        answer = Answer()
        asking = asyncio.create_task(read_stream(stack.pods[0], model, "[[k=9999 gap=20]]", answer))
        await until(lambda: bool(answer.text))
        try:
            await asyncio.to_thread(own_broker.stop)
            async with asyncio.timeout(15):
                await asking
        finally:
            await asyncio.to_thread(own_broker.start)
        assert answer.error is not None
        assert not answer.done
        assert not answer.finishes
        await first_served(stack, model)
        await until(lambda: nothing_runs(engine))


async def nothing_runs(engine: ScriptedEngine) -> bool:
    return await engine.running() == 0


async def test_an_alarm_holds_up_what_runs_and_refuses_what_is_new(
    own_broker: BrokerNode, model: str
) -> None:
    """Of the disk; to a client one for want of memory is the same."""
    raised, lifted = ("set_disk_free_limit", "999999GB"), ("set_disk_free_limit", "1MB")
    engine = ScriptedEngine(served_id=model, slots=8)
    async with rabbit_stack(own_broker.url, [engine]) as stack:
        async with streaming(stack.pods, model, 150, amid=False):
            await asyncio.to_thread(own_broker.ctl, *raised)
            try:
                # It is noticed by a pod of which nobody asks anything.
                await until(stack.services.dispatcher.blocked, timeout_s=15)
                assert await first_refused(stack, model) < 1
                assert stack.services.dispatcher.connected()
            finally:
                await asyncio.to_thread(own_broker.ctl, *lifted)
        assert attempts(stack.pods) == []
        async with asyncio.timeout(10):
            await first_served(stack, model)
        assert all(source.reconnects == 0 for source in sources_of(stack))
        await until(lambda: nothing_runs(engine))


async def first_refused(stack: Stack, model: str) -> float:
    """How long the first refusal took."""
    loop = asyncio.get_running_loop()
    while True:
        began_at = loop.time()
        async with httpx.AsyncClient(base_url=stack.url, timeout=20) as http:
            message = {"role": "user", "content": "[[k=1 gap=1]]"}
            answer = await http.post(CHAT, json={"model": model, "messages": [message]})
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["code"] == "model_overloaded"
            return loop.time() - began_at
        await asyncio.sleep(0.1)


async def health(pod: Pod) -> int:
    async with httpx.AsyncClient(base_url=pod.url, timeout=20) as http:
        return (await http.get("/health/ready")).status_code


Injury = Callable[[Proxy], Awaitable[None]]


async def _cut(proxy: Proxy) -> None:
    proxy.cut()


async def _freeze(proxy: Proxy) -> None:
    """No packets for longer than the heartbeat allows, then all of them at once."""
    proxy.hold()
    await asyncio.sleep(3.5)
    proxy.release()


@pytest.mark.parametrize(
    ("injury", "ends"), [(_cut, "worker"), (_cut, "ingress"), (_freeze, "worker and ingress")]
)
async def test_a_connection_is_cut_or_frozen(
    own_broker: BrokerNode, model: str, injury: Injury, ends: str
) -> None:
    async with contextlib.AsyncExitStack() as exits:
        proxy = Proxy(own_broker.url)
        await proxy.open()
        exits.push_async_callback(proxy.close)
        harmed, whole = f"{proxy.url}?heartbeat=1", own_broker.url
        sources = []
        for n in range(2):
            url = harmed if "worker" in ends and n == 0 else whole
            source = await RabbitJobSource.connect(url, model=model, slots=8)
            exits.push_async_callback(source.close)
            engine = ScriptedEngine(served_id=model, slots=8)
            worker = run_worker(engine, source, name=f"worker-{n}", announce_interval_s=0.5)
            await exits.enter_async_context(worker)
            sources.append(source)
        dispatcher = await RabbitDispatcher.connect(harmed if "ingress" in ends else whole)
        exits.push_async_callback(dispatcher.close)
        pod = await exits.enter_async_context(serve_pod(dispatcher, model=model))
        await ready(pod.services, workers=2)

        def reconnected() -> bool:
            return (
                ("worker" not in ends or sources[0].reconnects > 0)
                and ("ingress" not in ends or dispatcher.reconnects > 0)
                and dispatcher.connected()
                and all(source.connected() for source in sources)
            )

        async with streaming([pod], model, 400 if injury is _freeze else 150):
            await injury(proxy)
            await until(reconnected, timeout_s=10)
        assert await consumers(own_broker, model) == 2
        assert not any(source._held for source in sources)
        assert dispatcher._replies == {}

"""Limits of an account over three ingress pods that share one PostgreSQL, and of its batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest
import structlog
from click.testing import CliRunner

from ingress.accounts.account import Account, Budget, Limits
from ingress.commands import ingress
from ingress.config import Config
from ingress.limits.ledger import Ledger
from ingress.limits.ledger_limiter import LedgerLimiter
from ingress.limits.limiter import Demand
from ingress.limits.state import AccountState, Outcome, Turn
from ingress.limits.window import Window
from ingress.settings import LimitSettings
from ingress.stores.sql import SqlStore
from schemas.transport.memory import MemoryTransport
from tests.contract.test_store_postgres import migrated
from tests.fixtures.batches import add_batch, ended, openai_line, run_batcher, said
from tests.fixtures.postgres import Postgres
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, Pod, memory_stack, ready, run_worker, serve_pod, until
from workers.engines.scripted import ScriptedEngine

KEY = {"Authorization": "Bearer the-only-key"}


def config(**limits: object) -> Config:
    """One account, of a model of which each token costs a millionth of a cent."""
    price = {"input_cents_per_million": 1, "output_cents_per_million": 1}
    account = {"id": "ours", "keys": [{"key": "the-only-key"}], "limits": limits}
    return Config.model_validate(
        {
            "models": [{"id": MODEL, "context_length": 4096, "pricing": price}],
            "accounts": [account],
        }
    )


class Watched:
    """A ledger that writes down when how many requests were admitted, by its own clock.

    It did that itself, or hears of it from a process that had them in its pocket.
    """

    def __init__(self, ledger: Ledger, admitted: list[tuple[float, int]], part_s: float) -> None:
        self._ledger = ledger
        self._admitted = admitted
        self._part_s = part_s

    async def exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        outcomes = await self._ledger.exchange(process, turns)
        for turn, outcome in zip(turns, outcomes, strict=True):
            new = sum(
                verdict.refusal is None and not ask.look
                for ask, verdict in zip(turn.asks, outcome.verdicts, strict=True)
            )
            self._admitted.append((outcome.now, new))
            for part, more in turn.settlement.requests.items():
                self._admitted.append((part * self._part_s, more))
        return outcomes

    async def close(self) -> None:
        await self._ledger.close()


def limiter_of(pod: Pod) -> LedgerLimiter:
    limiter = pod.services.limiter
    assert isinstance(limiter, LedgerLimiter)
    return limiter


def is_idle(limiter: LedgerLimiter) -> bool:
    """Whether it holds nothing and has told all."""
    return not any(book.holds or book.owes for book in limiter._books.values())


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    url = postgres.new_database()
    asyncio.run(migrated(url))
    yield url
    postgres.drop_database(url)


@asynccontextmanager
async def three_pods(
    database: str, admitted: list[tuple[float, int]], accounting: LimitSettings, **limits: object
) -> AsyncIterator[list[Pod]]:
    engine = ScriptedEngine(served_id=MODEL, context_length=4096)
    memory = MemoryTransport()
    async with AsyncExitStack() as exits:
        source = memory.job_source(model=MODEL, slots=engine.slots)
        exits.push_async_callback(source.close)
        await exits.enter_async_context(run_worker(engine, source))
        pods = []
        for _ in range(3):
            dispatcher = memory.dispatcher()
            exits.push_async_callback(dispatcher.close)
            store = await SqlStore.open(database)
            exits.push_async_callback(store.close)
            pod = serve_pod(dispatcher, store=store, config=config(**limits), accounting=accounting)
            pods.append(await exits.enter_async_context(pod))
            await ready(pods[-1].services)
            limiter = limiter_of(pods[-1])
            part_s = accounting.window_s / Window().parts
            limiter._ledger = Watched(limiter._ledger, admitted, part_s)
        yield pods


@pytest.mark.rule("limits.never-exceeded", "limits.however-it-ends")
async def test_two_hundred_clients_of_three_pods_exceed_nothing_and_lose_nothing(
    database: str, postgres: Postgres
) -> None:
    """A window of one second stands for a minute."""
    window_s, most, at_once = 1.0, 60, 20
    admitted: list[tuple[float, int]] = []
    in_flight: list[int] = []
    codes: list[int] = []
    accounting = LimitSettings(window_s=window_s)
    limits = {
        "concurrency": at_once,
        "requests_per_minute": most,
        "tokens_per_minute": 1_000_000,
        "budget": {"cents": 100, "period": "total"},
    }
    async with (
        three_pods(database, admitted, accounting, **limits) as pods,
        httpx.AsyncClient(headers=KEY, verify=False, timeout=30) as client,
    ):

        async def one(number: int) -> None:
            pod, kind = pods[number % 3], number // 3 % 4
            text = "[[fail:1]] of it" if kind == 3 else "[[k=4 gap=10 ttft=0]]"
            body = request_body("chat", text, stream=kind != 1, max_tokens=8)
            async with client.stream("POST", f"{pod.url}{path_of('chat')}", json=body) as response:
                codes.append(response.status_code)
                async for _ in response.aiter_bytes():
                    in_flight.append(sum(one.services.admission.in_flight for one in pods))
                    if kind == 2:
                        break

        async def ask_often(number: int) -> None:
            for again in range(2):
                await asyncio.sleep(number % 10 * 0.05)
                await one(number + again)

        with structlog.testing.capture_logs() as logs:  # to show them would take longest
            await asyncio.gather(*map(ask_often, range(200)))
        assert "limits.ledger_lost" not in [entry["event"] for entry in logs]
        limiters = [limiter_of(pod) for pod in pods]
        for limiter in limiters:
            await until(partial(is_idle, limiter))
    assert set(codes) == {200, 429}
    assert max(in_flight) <= at_once
    admitted.sort()
    for at, _ in admitted:
        assert sum(new for then, new in admitted if at - window_s < then <= at) <= most
    total = sum(new for _, new in admitted)
    assert total == codes.count(200)
    assert total >= most
    # What was used, by the records of all requests, is what the account has spent.
    used = "SELECT count(*), sum(input_tokens + output_tokens), sum(microcents) FROM usage_records"
    ((count, tokens, cost),) = postgres.run(used, url=database)
    ((text,),) = postgres.run("SELECT state FROM account_states", url=database)
    state = msgspec.msgpack.decode(text, type=AccountState)
    spent = state.spending["total"].microcents
    assert (count, tokens, cost) == (total, spent, spent)
    assert not any(lease.hold.in_flight for lease in state.leases.values())


@pytest.mark.rule("limits.killed-process")
async def test_what_a_killed_pod_had_reserved_is_free_for_the_others(database: str) -> None:
    admitted: list[tuple[float, int]] = []
    account = Account(account_id="ours", limits=Limits(concurrency=3, tokens_per_minute=30))
    async with three_pods(database, admitted, LimitSettings(hold_s=0.5)) as pods:
        limiters = [limiter_of(pod) for pod in pods]
        for limiter in limiters:
            await limiter.reserve(account, Demand(input_tokens=5, output_tokens=5))

        async def free() -> bool:
            with suppress(Exception):
                await limiters[1].reserve(account, Demand(input_tokens=5, output_tokens=5))
                return True
            return False

        for _ in range(3):  # longer than a hold lasts, the living go on saying that they live
            assert not await free()
            await asyncio.sleep(0.25)
        assert limiters[0]._running is not None
        limiters[0]._running.cancel()
        await until(free)
        assert not await free()


@pytest.mark.rule("limits.batches")
async def test_lines_of_batches_cost_what_they_use_and_are_limited_by_nothing_else(
    tmp_path: Path,
) -> None:
    limits = {"requests_per_minute": 1, "concurrency": 1, "budget": {"cents": 1}}
    async with (
        memory_stack(
            ScriptedEngine(served_id=MODEL, context_length=4096),
            files=tmp_path,
            config=config(**limits),
        ) as stack,
        httpx.AsyncClient(base_url=stack.url, headers=KEY, verify=False) as client,
    ):
        services = stack.services
        assert services.store is not None
        assert services.blobs is not None
        lines = [openai_line(str(number), said("fine")) for number in range(5)]
        batch = await add_batch(services.store, services.blobs, lines, account="ours")
        async with run_batcher(services):
            batch = await ended(services.store, batch)
        assert batch.counts.succeeded == 5
        used = batch.usage.input_tokens + batch.usage.output_tokens
        limiter = limiter_of(stack.pods[0])
        book = limiter._books["ours"]
        await until(lambda: not book.owes)
        assert book.state is not None
        assert book.state.spending["month"].microcents == used
        assert not book.state.requests
        # The rest of the cent, and there is no credit for another batch.
        account = Account(account_id="ours", limits=Limits(budget=Budget(cents=1)))
        limiter.charge(account, batch.usage, 1_000_000 - used)
        await until(lambda: not book.owes)
        for path, body in (
            ("/v1/batches", {"input_file_id": batch.input_file_id}),
            ("/v1/messages/batches", {"requests": []}),
        ):
            response = await client.post(path, json=body)
            assert response.status_code == 402
            assert response.json()["error"]["code"] == "insufficient_credits"
            assert response.headers["x-should-retry"] == "false"


def test_several_processes_cannot_hold_limits_without_a_database(tmp_path: Path) -> None:
    path = tmp_path / "headrace.yaml"
    path.write_text(
        "accounts: [{id: ours, keys: [{key: some-long-key-of-ours}], limits: {concurrency: 1}}]"
    )
    arguments = ["--amqp-url", "amqp://u:p@one", "--config", str(path)]
    result = CliRunner().invoke(ingress, arguments)
    assert result.exit_code == 2
    assert "The account 'ours' has limits." in " ".join(result.output.split())
    assert "--database" in result.output

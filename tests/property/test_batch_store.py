"""The batch store against a model of it: whatever is done in whatever order, both say the same."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.batch import lifecycle
from ingress.stores.base import BatchStore, LeaseLost
from ingress.stores.sql import SqlStore
from schemas.batch import UNFINISHED, Batch, Counts, LineResult, Outcome
from schemas.delta import Usage
from schemas.errors import BatchNotCancellable

LEASE_S = 10.0
OWNERS = ("one", "two", "three")

owners = st.sampled_from(OWNERS)
numbers = st.integers(0, 2)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["succeeded", "errored"])
results = st.lists(
    st.builds(
        LineResult,
        line=st.integers(1, 8),
        outcome=outcomes,
        text=st.binary(max_size=6),
        usage=st.builds(Usage, *[st.integers(0, 5)] * 4),
    ),
    max_size=5,
)
steps = st.one_of(
    st.tuples(st.just("claim"), owners),
    st.tuples(st.just("renew"), owners, numbers),
    st.tuples(st.just("release"), owners, numbers),
    st.tuples(st.just("commit"), owners, numbers, results),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("finish"), owners, numbers),
    st.tuples(st.just("drop"), numbers),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 4.0, LEASE_S])),
)


@dataclass
class Model:
    """What a store holds, as plain values."""

    batches: list[Batch]
    now: float = 100.0
    leases: dict[int, tuple[str, float]] = field(default_factory=dict)
    results: dict[int, dict[int, LineResult]] = field(default_factory=dict)

    def claim(self, owner: str) -> Batch | None:
        for number, batch in enumerate(self.batches):
            if batch.status in UNFINISHED and self.leases.get(number, ("", 0.0))[1] <= self.now:
                self.leases[number] = (owner, self.now + LEASE_S)
                return batch
        return None

    def renew(self, owner: str, number: int) -> Batch:
        self._require(owner, number)
        self.leases[number] = (owner, self.now + LEASE_S)
        return self.batches[number]

    def release(self, owner: str, number: int) -> None:
        if self._holds(owner, number):
            del self.leases[number]

    def commit(self, owner: str, number: int, group: list[LineResult]) -> int:
        self._require(owner, number)
        stored = self.results.setdefault(number, {})
        new = 0
        for result in group:
            if result.line in stored:
                continue
            new += 1
            stored[result.line] = result
            batch = self.batches[number]
            counts, usage = batch.counts, batch.usage
            self.batches[number] = msgspec.structs.replace(
                batch,
                counts=Counts(
                    **{
                        **msgspec.structs.asdict(counts),
                        result.outcome: getattr(counts, result.outcome) + 1,
                    }
                ),
                usage=Usage(
                    *(
                        getattr(usage, name) + getattr(result.usage, name)
                        for name in Usage.__struct_fields__
                    )
                ),
            )
        return new

    def cancel(self, number: int) -> Batch:
        self.batches[number] = lifecycle.cancel(self.batches[number], self.now)
        return self.batches[number]

    def finish(self, owner: str, number: int) -> Batch:
        self._require(owner, number)
        self.batches[number] = finished(self.batches[number], self.now)
        return self.batches[number]

    def drop(self, number: int) -> None:
        self.results.pop(number, None)

    def _holds(self, owner: str, number: int) -> bool:
        return self.leases.get(number, ("", 0.0))[0] == owner

    def _require(self, owner: str, number: int) -> None:
        if not self._holds(owner, number):
            raise LeaseLost


def finished(batch: Batch, now: float) -> Batch:
    return lifecycle.finished(batch, now=now, cancelled=1, expired=0)


class Real:
    """The same words, said to a store. `now` is the model's."""

    def __init__(self, store: BatchStore, batches: list[Batch]) -> None:
        self.store = store
        self.ids = [batch.batch_id for batch in batches]
        self.now = 0.0

    async def claim(self, owner: str) -> Batch | None:
        return await self.store.claim(owner, now=self.now, lease_s=LEASE_S)

    async def renew(self, owner: str, number: int) -> Batch:
        return await self.store.renew(self.ids[number], owner, now=self.now, lease_s=LEASE_S)

    async def release(self, owner: str, number: int) -> None:
        await self.store.release(self.ids[number], owner)

    async def commit(self, owner: str, number: int, group: list[LineResult]) -> int:
        return await self.store.commit(self.ids[number], owner, group)

    async def cancel(self, number: int) -> Batch | None:
        return await self.store.change_batch(
            self.ids[number], lambda batch: lifecycle.cancel(batch, self.now)
        )

    async def finish(self, owner: str, number: int) -> Batch | None:
        return await self.store.change_batch(
            self.ids[number], lambda batch: finished(batch, self.now), owner=owner
        )

    async def drop(self, number: int) -> None:
        await self.store.drop_results(self.ids[number])


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[asyncio.Runner, SqlStore]]:
    """One store for all examples, for its making is the dear part."""
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        store = runner.run(SqlStore.open(f"sqlite:///{Path(directory) / 'headrace.db'}"))
        yield runner, store
        runner.run(store.close())


_examples = itertools.count()


async def same_answers(store: SqlStore, doing: list[tuple[Any, ...]]) -> None:
    example = next(_examples)
    batches = [
        Batch(
            batch_id=f"batch_{example}_{number}",
            account=f"account-{example}",
            shape="openai",
            endpoint="/v1/responses",
            input_blob="files/x",
            created_at=float(number),
            expires_at=1000.0,
        )
        for number in range(3)
    ]
    for batch in batches:
        await store.add_batch(batch, max_unfinished=3)
    try:
        await _same_answers(store, batches, doing)
    finally:  # for the next example is to find none but its own
        for batch in batches:
            await store.delete_batch(batch.account, batch.batch_id, lambda _: None)


async def _same_answers(
    store: SqlStore, batches: list[Batch], doing: list[tuple[Any, ...]]
) -> None:
    model, real = Model(list(batches)), Real(store, batches)
    claims = itertools.count()
    named: dict[str, str] = {}  # an owner is unique to a claim
    for what, *arguments in doing:
        if what == "wait":
            model.now += arguments[0]
            continue
        real.now = model.now
        if what == "claim":
            owner = named[arguments[0]] = f"{arguments[0]}-{next(claims)}"
            arguments = [owner]
        elif arguments[0] in OWNERS:
            arguments[0] = named.get(arguments[0], "nobody")
        try:
            wanted: Any = getattr(model, what)(*arguments)
        except (LeaseLost, BatchNotCancellable) as error:
            with pytest.raises(type(error)):
                await getattr(real, what)(*arguments)
        else:
            assert await getattr(real, what)(*arguments) == wanted
    for number, batch in enumerate(batches):
        assert await store.batch(batch.account, batch.batch_id) == model.batches[number]
        stored = sorted(model.results.get(number, {}).items())
        lines = [line async for line in store.committed(batch.batch_id)]
        assert lines == [line for line, _ in stored]
        assert [result async for result in store.results(batch.batch_id)] == [
            (line, result.outcome, result.text) for line, result in stored
        ]


@settings(max_examples=40)
@given(doing=st.lists(steps, max_size=20))
def test_whatever_is_done_the_store_says_what_its_model_says(
    running: tuple[asyncio.Runner, SqlStore], doing: list[tuple[Any, ...]]
) -> None:
    runner, store = running
    runner.run(same_answers(store, doing))

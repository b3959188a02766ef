"""Batch work gives way inside the real engine, and goes on there."""

from __future__ import annotations

import pytest

from schemas.sampling import Regex
from schemas.transport.memory import MemoryTransport
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.stack import until
from tests.integration.test_sharing import a_worker, losses
from workers.engines.sglang import SglangEngine

pytestmark = [pytest.mark.sglang, SESSION_LOOP, pytest.mark.timeout(300)]

TEXT = " ".join(f"{number} bottles of beer" for number in range(20, 0, -1))
"""What every batch Job says, each word once."""


@pytest.mark.rule("sharing.live-first")
@pytest.mark.rule("sharing.same-result")
async def test_live_requests_take_the_slots_of_a_real_engine(sglang_engine: SglangEngine) -> None:
    slots = sglang_engine.slots
    model = sglang_engine.card.id
    memory = MemoryTransport()
    source = memory.job_source(model=model, slots=slots)
    async with a_worker(source, memory.dispatcher(), sglang_engine) as fleet:
        batch = [
            fleet.ask(f"batch-{at}", "batch", n=1 + at % 2, constraint=Regex(pattern=TEXT))
            for at in range(slots)
        ]
        await until(lambda: all(asked.answers() for asked in batch), timeout_s=60)
        live = [
            fleet.ask(f"live-{at}", "interactive", constraint=Regex(pattern="well, yes"))
            for at in range(slots)
        ]
        await until(lambda: all(asked.ended for asked in live), timeout_s=60)
        assert {asked.text() for asked in live} == {"well, yes"}
        assert losses(live) == []
        await until(lambda: all(asked.ended for asked in batch), timeout_s=120)
        assert losses(batch)
        assert set(losses(batch)) == {"yielded"}
        for asked in batch:
            for choice in range(asked.generation.job.sampling.n):
                assert asked.text(choice) == TEXT

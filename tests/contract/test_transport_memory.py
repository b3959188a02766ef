from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from schemas.transport.base import Dispatcher, JobSource
from schemas.transport.memory import MemoryTransport
from tests.contract.transport_suite import Harness, TransportSuite


class MemoryHarness:
    def __init__(self) -> None:
        self._transport = MemoryTransport()
        self._opened: list[Dispatcher | JobSource] = []

    async def dispatcher(self, *, reply_buffer_bytes: int = 1 << 20) -> Dispatcher:
        dispatcher = self._transport.dispatcher(reply_buffer_bytes=reply_buffer_bytes)
        self._opened.append(dispatcher)
        return dispatcher

    async def source(
        self, model: str, slots: int = 4, max_queued_jobs: int = 1000, batch_floor: int = 0
    ) -> JobSource:
        source = self._transport.job_source(
            model=model, slots=slots, max_queued_jobs=max_queued_jobs, batch_floor=batch_floor
        )
        self._opened.append(source)
        return source

    async def kill(self, source: JobSource) -> None:
        await source.close()

    async def close(self) -> None:
        for end in self._opened:
            await end.close()


class TestMemoryTransport(TransportSuite):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        harness = MemoryHarness()
        yield harness
        await harness.close()

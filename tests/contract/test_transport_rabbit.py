from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from schemas.transport.base import Dispatcher, JobSource
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from tests.contract.transport_suite import Harness, TransportSuite
from tests.fixtures.broker import Broker, Proxy

pytestmark = pytest.mark.broker


class RabbitHarness:
    def __init__(self, url: str) -> None:
        self._url = url
        self._ends: list[Dispatcher | JobSource] = []
        self._proxies: dict[JobSource, Proxy] = {}

    async def dispatcher(self, *, reply_buffer_bytes: int = 1 << 20) -> Dispatcher:
        settings = DispatcherSettings(reply_queues=4, reply_buffer_bytes=reply_buffer_bytes)
        dispatcher = await RabbitDispatcher.connect(self._url, settings, name="test")
        self._ends.append(dispatcher)
        return dispatcher

    async def source(
        self, model: str, slots: int = 4, max_queued_jobs: int = 1000, batch_floor: int = 0
    ) -> JobSource:
        proxy = Proxy(self._url)
        await proxy.open()
        source = await RabbitJobSource.connect(
            proxy.url,
            model=model,
            slots=slots,
            settings=SourceSettings(
                max_queued_jobs=max_queued_jobs, poll_s=0.02, batch_floor=batch_floor
            ),
            name="test",
        )
        self._proxies[source] = proxy
        self._ends.append(source)
        return source

    async def kill(self, source: JobSource) -> None:
        """Reset its connection, and let it never come back."""
        await self._proxies[source].refuse()

    async def close(self) -> None:
        for end in self._ends:
            await end.close()
        for proxy in self._proxies.values():
            await proxy.close()


class TestRabbitTransport(TransportSuite):
    @pytest.fixture
    async def harness(self, broker: Broker) -> AsyncIterator[Harness]:
        harness = RabbitHarness(broker.url)
        yield harness
        await harness.close()

"""Clients: so many requests at a time, all that is on the wire kept until it is judged.

They know the addresses of the pods, and a pod that is gone is asked no more, as by a load balancer.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.asks import Ask
from tests.chaos.fleet import Fleet

ANSWER_LIMIT_S = 150.0
"""A request that has not ended by then hangs: longer than every limit of the service that applies
to requests as short as these."""

_UNSEEN_S = 5.0
"""What an answer that is no stream is given to go on with another worker, on a busy machine."""

_MOVING_S = 5.0
"""A silence that begins later after an injury has another reason."""


@dataclass(slots=True, kw_only=True)
class Heard:
    """What a client has got.

    Attributes:
        status: None if not even a status line came.
        arrivals: When something of the answer came, in the monotonic clock.
        cut: The connection ended before the answer did.
        hung: It was given up after `ANSWER_LIMIT_S`.
        left: The client went away on purpose.
    """

    ask: Ask
    pod: str
    began: float
    ended: float = 0.0
    status: int | None = None
    request_id: str = ""
    body: bytes = b""
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    cut: bool = False
    hung: bool = False
    left: bool = False

    @property
    def silence_s(self) -> float:
        """The longest time without anything of the answer, from its request on."""
        marks = [self.began, *self.arrivals, self.ended]
        return max(b - a for a, b in itertools.pairwise(marks))

    def silence_at(self, blows: Sequence[float]) -> float:
        """The longest silence around an injury: what was silent before it counts from it.

        Without an injury meanwhile, the longest of all.
        """
        marks = [self.began, *self.arrivals, self.ended]
        silences = [
            b - max(a, at)
            for at in blows
            for a, b in itertools.pairwise(marks)
            if a - _MOVING_S <= at < b
        ]
        return max(silences, default=self.silence_s)


class Load:
    """Sends requests until it is told to stop.

    Args:
        order: Which requests, one after the other, for ever.
        hear: Called with every answer.
        leave_after: For each request how many pieces the client waits for before it leaves; None
            for a client that stays.
    """

    def __init__(
        self,
        fleet: Fleet,
        asks: Sequence[Ask],
        *,
        concurrency: int,
        hear: Callable[[Heard], None],
        pods: Callable[[], Sequence[str]] | None = None,
        leave_after: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self._fleet = fleet
        self._asks = asks
        self.concurrency = concurrency
        self._hear = hear
        self._pods = pods or (lambda: [unit.name for unit in fleet.pods if unit.ready])
        self._leave_after = leave_after
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()
        self._open: set[aiohttp.ClientResponse] = set()
        self._waiting: list[Heard] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Clients at work; on leaving they finish what they have begun."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self.concurrency):
                group.create_task(self._client(http))
            try:
                yield self
            finally:
                self._stopping.set()

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while not self._stopping.is_set():
            pods = self._pods()
            if not pods:
                await asyncio.sleep(0.05)
                continue
            number = next(self._numbers)
            ask = self._asks[number % len(self._asks)]
            self._hear(await self._one(http, ask, pods[number % len(pods)], number))

    @property
    def streaming(self) -> int:
        """How many answers have begun and not ended."""
        return sum(not response.closed for response in self._open)

    def all_went_on(self, *, since: float) -> bool:
        """Whether every answer that was under way then has grown since.

        Of one that is no stream nobody can see that: it has ended, or is given some time.
        """
        unseen_s = time.monotonic() - since
        return all(
            heard.began > since
            or (heard.arrivals and heard.arrivals[-1] > since)
            or (not heard.ask.flows and unseen_s > _UNSEEN_S)
            for heard in self._waiting
        )

    def leave(self) -> None:
        """Every client goes away at once, and sends nothing any more."""
        self._stopping.set()
        for response in tuple(self._open):
            response.close()

    async def one(self, ask: Ask) -> Heard:
        """Send one request beside the others."""
        number = next(self._numbers)
        pods = self._pods()
        async with aiohttp.ClientSession() as http:
            return await self._one(http, ask, pods[number % len(pods)], number)

    async def once(self) -> None:
        """Send every request once."""
        connector = aiohttp.TCPConnector(limit=0)
        numbers = iter(range(len(self._asks)))

        async def client(http: aiohttp.ClientSession) -> None:
            for number in numbers:
                pods = self._pods()
                ask = self._asks[number]
                self._hear(await self._one(http, ask, pods[number % len(pods)], number))

        async with (
            aiohttp.ClientSession(connector=connector) as http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self.concurrency):
                group.create_task(client(http))

    async def _one(self, http: aiohttp.ClientSession, ask: Ask, pod: str, number: int) -> Heard:
        heard = Heard(ask=ask, pod=pod, began=time.monotonic())
        self._waiting.append(heard)
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await self._read(http, heard, self._leave_after(number))
        except TimeoutError:
            heard.hung = True
        except (aiohttp.ClientError, OSError):
            heard.cut = True
        heard.ended = time.monotonic()
        self._waiting = [other for other in self._waiting if other is not heard]
        return heard

    async def _read(
        self, http: aiohttp.ClientSession, heard: Heard, leave_after: int | None
    ) -> None:
        url = self._fleet.urls[heard.pod] + heard.ask.path
        pieces: list[bytes] = []
        try:
            async with http.post(url, json=heard.ask.body) as response:
                heard.status = response.status
                self._open.add(response)
                heard.request_id = response.headers.get("x-request-id", "")
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    if b"data: " in piece or not heard.ask.stream:
                        heard.arrivals.append(time.monotonic())
                    if leave_after is not None and len(pieces) > leave_after:
                        heard.left = True
                        response.close()
                        return
        finally:
            self._open.difference_update([response for response in self._open if response.closed])
            heard.body = b"".join(pieces)

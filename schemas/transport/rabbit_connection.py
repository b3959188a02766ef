"""One connection to the broker per process, kept up.

When a connection is lost, everything on it is lost: channels, consumers, exclusive queues. So it is
made again from nothing, by the same code that made it the first time, and counts as up only when
all of it stands. aio-pika's own robust connection restores object by object instead, and can come
back with a socket and no consumers.

A `Session` is one such connection's life. A cluster has several URLs; whoever is not answered at
one of them goes to the next. This module knows no Job and no reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import aio_pika
import msgspec
import structlog
from aio_pika.abc import AbstractChannel, AbstractExchange
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, AuthenticationError
from aiormq.abc import AbstractChannel as WireChannel
from aiormq.exceptions import ProbableAuthenticationError
from yarl import URL

from schemas.transport import topology
from schemas.transport.rabbit_wire import FrameTap, Poster, ReturnCallback, Wire

log = structlog.get_logger(__name__)

BROKER_ERRORS = (*CONNECTION_EXCEPTIONS, TimeoutError)
"""What any call to the broker may raise when the connection or the channel fails."""

_CLOSE_TIMEOUT_S = 2.0


class BrokerUnreachable(ConnectionError):
    """No usable connection to the broker could be made in time. The text holds no credentials."""


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the connection is made and kept.

    Attributes:
        connect_timeout_s: How long the first connection is tried for.
        attempt_timeout_s: How long one attempt may take to reach a broker.
        set_up_timeout_s: How long it may then take to put everything in place.
        heartbeat_s: A peer that is silent for about twice as long is given up.
        reconnect_min_s: Pause before the first reconnect; doubles with each failure and is spread
            by half of itself either way, so that a broker's clients do not return all at once.
        reconnect_max_s: Longest such pause.
        restore_s: How long everything may be impossible to put in place on a broker that answers.
        write_buffer_bytes: Unsent bytes above which `Delivery.writable` waits.
    """

    connect_timeout_s: float = 30.0
    attempt_timeout_s: float = 5.0
    set_up_timeout_s: float = 30.0
    heartbeat_s: int = 15
    reconnect_min_s: float = 0.25
    reconnect_max_s: float = 2.0
    restore_s: float = 60.0
    write_buffer_bytes: int = 1 << 20


class Session:
    """One connection, from the first frame to the last.

    Attributes:
        lost: Set when it ended or failed; nothing on it may be used any more.
        reason: Why.
    """

    def __init__(self, connection: aio_pika.Connection, wire: Wire) -> None:
        self._connection = connection
        self._writer = wire.writer
        self.tap: FrameTap = wire.tap
        self.lost = asyncio.Event()
        self.reason = ""
        self._channels: list[AbstractChannel] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, url: URL, name: str, settings: ConnectionSettings) -> Session:
        wire = Wire(settings.write_buffer_bytes)
        connection = aio_pika.Connection(url, client_properties={"connection_name": name})
        connection.kwargs["transport_factory"] = wire
        try:
            await connection.connect(timeout=settings.attempt_timeout_s)
        except BaseException:
            await connection.close()
            raise
        session = cls(connection, wire)
        connection.close_callbacks.add(
            lambda _, error: session.fail(f"connection closed: {type(error).__name__}")
        )
        return session

    async def start_posting(self, on_return: ReturnCallback | None = None) -> None:
        """Open the channel behind `post`. Returned messages go to `on_return`."""
        channel = await wire_channel(await self.channel(confirms=False))
        tune = channel.connection.connection_tune
        self.poster = Poster(channel.number, tune.frame_max)
        if on_return is not None:
            self.tap.watch_returns(channel.number, on_return)

    @property
    def alive(self) -> bool:
        return not self.lost.is_set()

    def fail(self, reason: str) -> None:
        """Give the connection up; it will be made again."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()

    async def channel(self, *, confirms: bool, vital: bool = True) -> AbstractChannel:
        """Open a channel.

        Args:
            confirms: Publishes wait for the broker; a returned message raises.
            vital: The session fails when the broker closes it.
        """
        channel = await self._connection.channel(
            publisher_confirms=confirms, on_return_raises=confirms
        )
        if vital:
            channel.close_callbacks.add(
                lambda _, error: self.fail(f"channel closed: {type(error).__name__}")
            )
            wire = await wire_channel(channel)
            wire.on_consumer_cancel_callbacks.add(lambda _: self.fail("consumer cancelled"))
        self._channels = [kept for kept in self._channels if not kept.is_closed]
        self._channels.append(channel)  # aio-pika keeps only weak references
        return channel

    def start(self, work: Awaitable[None]) -> None:
        """Run `work` until it ends or the session does."""

        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # by aiormq, with a channel, unless the session is over already
            self.fail("a task was cancelled")
        elif (error := task.exception()) is not None:
            self.fail(f"{type(error).__name__}: {error}")

    def post(self, exchange: str, routing_key: str, body: bytes) -> None:
        """Publish a transient message without waiting for anything."""
        if self.alive:
            self.write(self.poster.message(self.poster.address(exchange, routing_key), body))

    def write(self, messages: bytes) -> None:
        """Write messages made by `poster`."""
        if not self.alive:
            return
        try:
            self._writer.write(messages)
        except RuntimeError:  # aiormq has ended its half, and tells of the loss a moment later
            self.fail("the connection takes nothing more")

    async def writable(self) -> None:
        """Wait until no more than the allowed bytes are unsent, or the session is lost."""
        if self.alive:
            with contextlib.suppress(OSError):
                await self._writer.drain()

    @property
    def backlog(self) -> bool:
        """Whether more than the allowed bytes are unsent."""
        transport = self._writer.transport
        return transport.get_write_buffer_size() > transport.get_write_buffer_limits()[1]

    async def close(self) -> None:
        self.fail("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            with cancelled_by_nobody_else():
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._connection.close()
        except BROKER_ERRORS:
            self._writer.transport.abort()


SetUp: TypeAlias = Callable[[Session], Awaitable[None]]
Lost: TypeAlias = Callable[[Session], None]


class BrokerConnection:
    """Holds the current session and makes the next one when it is lost.

    Args:
        urls: `amqp://` or `amqps://`, credentials included; of a cluster, several after commas.
        name: Shown by the broker's tools.
        set_up: Puts channels, queues and consumers in place on a new session.
        on_lost: Told at once when a session that was up is no more.
        on_broken: Told when a broker answers, but nothing can be put in place there for too long.

    Attributes:
        reconnects: How often it was made again.
    """

    def __init__(
        self,
        urls: str,
        *,
        name: str,
        settings: ConnectionSettings,
        set_up: SetUp,
        on_lost: Lost,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._urls = deque(parse_urls(urls, settings))
        self._urls.rotate(random.randrange(len(self._urls)))  # clients spread over a cluster
        self._name = name
        self._settings = settings
        self._set_up = set_up
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._answering_since: float | None = None  # without having let anything be put in place
        self._session: Session | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self.reconnects = 0

    @property
    def session(self) -> Session | None:
        """The session, if it is up now."""
        session = self._session
        return session if session is not None and session.alive else None

    async def session_within(self, timeout_s: float) -> Session | None:
        """The session, after waiting for a reconnect if need be."""
        if (session := self.session) is not None:
            return session
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # The old session may have ended without the keeper having noticed yet.
                while self.session is None:
                    await asyncio.sleep(0)
                    await self._up.wait()
        return self.session

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            BrokerUnreachable: Not within `connect_timeout_s`, or the credentials are refused.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.connect_timeout_s
        failures = 0
        while True:
            try:
                await self._begin()
                break
            except (AuthenticationError, ProbableAuthenticationError) as error:
                raise BrokerUnreachable(
                    f"{_place(self._urls[-1])} refused the credentials"
                ) from error
            except BROKER_ERRORS as error:
                pause = self._pause(failures)
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise BrokerUnreachable(
                        f"no usable broker at {self._places}: {_cause(error)}"
                    ) from error
                await asyncio.sleep(pause)
                failures += 1
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self._name}")

    async def close(self) -> None:
        # Cancelling alone is not enough: aiormq waits with `asyncio.wait_for`, which on Python 3.11
        # loses a cancellation that comes together with the result.
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _begin(self) -> None:
        url = self._urls[0]
        self._urls.rotate(-1)  # whatever comes of it, the next attempt is at the next one
        with cancelled_by_nobody_else():
            session = await Session.open(url, self._name, self._settings)
            self._answering_since = self._answering_since or asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self._settings.set_up_timeout_s):
                    await self._set_up(session)
            except BaseException:
                await session.close()
                raise
        self._answering_since = None
        self._session = session
        self._up.set()

    async def _keep(self) -> None:
        while not self._closing:
            session = self._session
            assert session is not None
            await session.lost.wait()
            self._up.clear()
            log.warning("broker.lost", connection=self._name, reason=session.reason)
            self._on_lost(session)
            await session.close()
            await self._return()

    async def _return(self) -> None:
        failures = 0
        while not self._closing:
            await asyncio.sleep(self._pause(failures))
            failures += 1
            try:
                await self._begin()
            except Exception as error:  # whatever it is: without a further attempt all is lost
                log.warning("broker.unreachable", connection=self._name, reason=_cause(error))
                since, now = self._answering_since, asyncio.get_running_loop().time()
                if since is not None and now - since > self._settings.restore_s:
                    self._on_broken()
            else:
                self.reconnects += 1
                log.info("broker.reconnected", connection=self._name, attempts=failures)
                return

    def _pause(self, failures: int) -> float:
        """Grows with each round in which no broker of the cluster answered."""
        rounds = min(failures // len(self._urls), 16)
        pause = min(self._settings.reconnect_min_s * 2.0**rounds, self._settings.reconnect_max_s)
        return pause * random.uniform(0.5, 1.5)

    @property
    def _places(self) -> str:
        return ", ".join(sorted(map(_place, self._urls)))


async def wire_channel(channel: AbstractChannel) -> WireChannel:
    """The aiormq channel below an open aio-pika channel."""
    return await channel.get_underlay_channel()


async def declare_exchanges(channel: AbstractChannel) -> dict[str, AbstractExchange]:
    """Declare every exchange of the topology; by name."""
    return {
        name: await channel.declare_exchange(name, kind, durable=True)
        for name, kind in topology.EXCHANGES
    }


def parse_urls(urls: str, settings: ConnectionSettings | None = None) -> tuple[URL, ...]:
    """The broker's URL, or those of a cluster's nodes after commas, with port and heartbeat.

    Raises:
        ValueError: One is no such URL. The text does not contain it: it holds the password.
    """
    settings = settings or ConnectionSettings()
    return tuple(_parse_url(url.strip(), settings) for url in urls.split(","))


def _parse_url(url: str, settings: ConnectionSettings) -> URL:
    try:
        parsed = URL(url)
        known = parsed.scheme in ("amqp", "amqps") and bool(parsed.host)
    except ValueError:
        known = False
    if not known:
        raise ValueError("the broker's URL must look like amqp://user:password@host:port/vhost")
    if parsed.port is None:
        parsed = parsed.with_port(5671 if parsed.scheme == "amqps" else 5672)
    if "heartbeat" not in parsed.query:
        parsed = parsed.update_query(heartbeat=str(settings.heartbeat_s))
    return parsed


def _cause(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(url: URL) -> str:
    return f"{url.scheme}://{url.host}:{url.port}{url.path}"


@contextlib.contextmanager
def cancelled_by_nobody_else() -> Iterator[None]:
    """Around calls to the broker: aiormq cancels what waits on a dying channel.

    Raises:
        ConnectionError: In place of a cancellation that this task was not asked for.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionError("the channel was lost") from error

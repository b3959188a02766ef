"""The response to one client of a recorded answer: the first who asked, or one who asked again.

One that leaves, or takes nothing for too long, takes nobody with it. Of each that asked again there
is a canonical line of its own, for the line of the work itself is the first one's.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ingress.disconnect import while_connected
from ingress.idempotency.kept import lasting
from ingress.idempotency.recording import Follower
from ingress.metrics import IngressMetrics
from schemas import telemetry
from schemas.errors import ClientClosedRequest

if TYPE_CHECKING:
    from ingress.services import UnderWay

log = structlog.get_logger()

REPLAYED_HEADER = b"x-headrace-replayed"
"""Says that nothing was generated for this request: the answer is an earlier one's."""

Role: TypeAlias = Literal["first", "joined", "replayed"]


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what, for the log."""

    request_id: str
    dialect: str
    model: str
    principal: str
    stream: bool
    client_retry: int | None


class Repeated(Response):
    """Follows a recording.

    Args:
        follower: Of the recording.
        role: Whose answer it is to this client.
        first: The id of the request that the answer was made for.
        write_s: How long a client may take nothing.
        under_way: What a process that ends waits for.
    """

    def __init__(
        self,
        follower: Follower,
        asker: Asker,
        role: Role,
        *,
        first: str,
        write_s: float,
        metrics: IngressMetrics,
        under_way: set[UnderWay],
    ) -> None:
        self.background = None
        self._under_way = under_way
        self._follower = follower
        self._asker = asker
        self._role = role
        self._first = first
        self._write_s = write_s
        self._metrics = metrics
        self._began = time.monotonic()
        self._status = ClientClosedRequest.status
        self._outcome = "cancelled"
        under_way.add(self)

    def refuse(self) -> None:
        """It is told what becomes of the answer."""

    def shut_down(self) -> None:
        """It is told what becomes of the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._write(send))
        except ClientClosedRequest:
            pass
        finally:
            self._follower.leave()
            self._under_way.discard(self)
            if self._role != "first":
                self._tell()

    async def _write(self, send: Send) -> None:
        more = True
        status = 0
        while more:
            message = await self._follower.next()
            if message["type"] == "http.response.start":
                status = message["status"]
                self._address(message)
            else:
                more = message["more_body"]
            try:
                async with asyncio.timeout(self._write_s):
                    await send(message)
            except (TimeoutError, OSError):
                raise ClientClosedRequest("The client stopped reading.") from None
        self._status = status
        self._outcome = "completed" if status == 200 else "failed"

    def _address(self, start: Message) -> None:
        """Make the headers this client's."""
        if self._role != "first":
            start["headers"] = [*lasting(start), (REPLAYED_HEADER, b"true")]

    def _tell(self) -> None:
        asker = self._asker
        self._metrics.repeated.labels(asker.dialect, asker.model, self._role).inc()
        log.info(
            telemetry.REQUEST_COMPLETED,
            request_id=asker.request_id,
            dialect=asker.dialect,
            model=asker.model,
            principal=asker.principal,
            stream=asker.stream,
            status=self._status,
            outcome=self._outcome,
            idempotent=self._role,
            first_request_id=self._first,
            duration_ms=round((time.monotonic() - self._began) * 1000, 1),
            client_retry=asker.client_retry,
        )

"""One answer over HTTP: drives a Generation and an encoder, and watches the client and the clock.

The status line is settled before the first byte: by the first token, by the reply's failure, or by
time. After that a failure is told inside the stream, in the dialect's own way. A client that leaves
cancels the Job at once, whether it is queued, in prefill or in decode, streaming or not.

One task per answer, the caller's: it carries Deltas to the socket. The nearest of the limits, and
the client's leaving, are calls of the event loop that end it or let it go on; so they cost nothing
per Delta. And text in the midst of a stream does not even wake it: it is written in the turn in
which it arrives, as long as its reader keeps up (`can_take`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ingress.dialects.base import Dialect, Encoder, Frame
from ingress.disconnect import until_gone
from ingress.errors import error_response
from ingress.generation import Generation, Phase
from ingress.line import Line, Sender
from ingress.settings import TimeLimits
from schemas.delta import Accepted, Completed, Delta, SpokenDelta, Started
from schemas.errors import (
    ClientClosedRequest,
    ErrorInfo,
    InternalError,
    ServerShuttingDown,
    ServingError,
)

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes the stream on as it comes
]

IGNORED_HEADER = b"x-headrace-ignored"
"""Names what of a request had no effect, where the dialect profile wants that said."""

_PIECE_BYTES = 1 << 16
"""A reader who is slow but steady is seen to take something as often as that much is written."""

_PLAIN_CHARS: Final = _PIECE_BYTES // 6
"""Text of so many is one piece for sure: JSON writes a character in six bytes at most."""

_STOOD_STILL_S: Final = 0.05
"""A limit that is noticed so late says that the process was busy, and nothing of a worker."""

_BEFORE_THE_ANSWER = (Accepted, Started)
"""An encoder may open the stream with what these tell."""


class Answer(Response):
    """The response to one inference request.

    Args:
        ignored: Fields of the request that have no effect, to be named in a header.
        headers: Further headers of the answer.
        on_phase: Called when another phase begins.
        refine: Completes an error by what the process knows, such as when to try again.
        on_end: Called once with the HTTP status and the error, if any, when all is over; ends the
            Generation.

    Attributes:
        error: Why it will not be whole, once that is known.
    """

    def __init__(
        self,
        *,
        generation: Generation,
        encoder: Encoder,
        dialect: Dialect,
        stream: bool,
        request_id: str,
        limits: TimeLimits,
        ignored: Sequence[str] = (),
        headers: Sequence[tuple[bytes, bytes]] = (),
        on_phase: Callable[[Phase], object],
        refine: Callable[[ErrorInfo], ErrorInfo],
        on_end: Callable[[int, ErrorInfo | None], Awaitable[None]],
    ) -> None:
        self.background = None
        self.error: ErrorInfo | None = None
        self._generation = generation
        self._encoder = encoder
        self._dialect = dialect
        self._stream = stream
        self._request_id = request_id
        self._limits = limits
        self._further_headers = [*headers]
        if ignored:
            self._further_headers.append((IGNORED_HEADER, ", ".join(ignored).encode()))
        self._on_phase = on_phase
        self._refine = refine
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._written_at = self._began_at
        self._writing_since: float | None = None
        self._aside: asyncio.Task[None] | None = None  # writes what is due by the clock
        self._committed = False
        self._opened = False
        self._send: Send
        self._line: Line | None = None  # to the client of a stream, if there is one
        self._carrier: asyncio.Task[None] | None = None  # while it carries
        self._given_up_for: Exception | None = None
        self._look: asyncio.TimerHandle | None = None
        generation.on_phase = self._phase_changed
        generation.on_limit = self._look_anew

    def _phase_changed(self) -> None:
        self._look_anew()
        self._on_phase(self._generation.phase)

    def refuse(self) -> None:
        """The process takes no more work: give up an answer that nobody has begun.

        One whose status line has left stays: its client would not ask again by itself.
        """
        if self._generation.accepted_at is None and not self._committed:
            self.shut_down()

    def shut_down(self) -> None:
        """The process ends: give up what is left of this answer."""
        self._give_up(ServerShuttingDown("The server is shutting down; try again."))

    def _give_up(self, why: Exception) -> None:
        """End the carrying, whatever it waits for. The first reason counts."""
        if self._given_up_for is None:
            self._given_up_for = why
            if self._carrier is not None:
                self._carrier.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: ServingError | None = None
        try:
            await self._drive(receive, send)
        except ServingError as raised:
            error = raised
        except asyncio.CancelledError:
            error = ClientClosedRequest("The request was given up.")
            raise
        except Exception as raised:
            error = InternalError("Something went wrong in the server.", diagnostic=repr(raised))
            raise
        finally:
            info = self._refine(error.info()) if error is not None else None
            self.error = info
            await asyncio.shield(self._on_end(self._status_for(info), info))
        if info is not None and not isinstance(error, ClientClosedRequest):
            await self._tell(info, scope, receive, send)

    def _status_for(self, error: ErrorInfo | None) -> int:
        """What the log calls this answer: the status line that left, or 499 for a lost client."""
        if error is None:
            return 200
        gone = error.code == ClientClosedRequest.code
        return error.status if gone or not self._committed else 200

    async def _tell(self, error: ErrorInfo, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.write_s):
                if not self._committed:
                    response = error_response(self._dialect, error, self._request_id)
                    await response(scope, receive, send)
                elif self._writing_since is None:
                    # One that is still on its way to a reader who takes nothing is not followed.
                    frames = self._encoder.fail(error, self._generation.usage)
                    await self._send_body(b"".join(frames), more=False)

    async def _drive(self, receive: Receive, send: Send) -> None:
        """Carry the answer until it is whole.

        Raises:
            ServingError: It will not be.
        """
        self._send = send
        leaving = None
        if line := send.line if isinstance(send, Sender) else None:
            line.watch(self._client_gone)
            if self._stream:
                self._line = line
                self._generation.listen(self)
        else:
            leaving = asyncio.create_task(until_gone(receive))
            leaving.add_done_callback(lambda _: self._client_gone())
        carrier = asyncio.current_task()
        assert carrier is not None
        try:
            if self._given_up_for is not None:
                raise self._given_up_for
            self._carrier = carrier
            self._look_anew()
            await self._carry()
        except asyncio.CancelledError:
            if self._given_up_for is None or carrier.uncancel() > 0:
                raise
            raise self._given_up_for from None
        finally:
            self._carrier = self._line = None
            if line:
                line.unwatch()
            if self._look is not None:
                self._look.cancel()
            await _end_tasks(leaving, self._aside)

    def _client_gone(self) -> None:
        self._give_up(ClientClosedRequest("The client went away."))

    def _look_anew(self) -> None:
        """Something has changed that the next limit depends on."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._carrier is not None:
            at = self._next_due()
            self._look = self._loop.call_at(at, self._on_time, at)

    def _on_time(self, due_at: float) -> None:
        """A limit may have passed."""
        if self._loop.time() - due_at > _STOOD_STILL_S:
            # So did everything else here: what has come meanwhile is read before it is judged.
            self._look = self._loop.call_later(_STOOD_STILL_S, self._on_time, math.inf)
            return
        self._look = None
        try:
            self._act_on_time()
        except Exception as error:
            self._give_up(error)
        else:
            self._look_anew()

    def _write_aside(self, writing: Coroutine[Any, Any, None]) -> None:
        """Write by a task of its own: a reader who takes nothing must not hold up the limits."""
        self._aside = asyncio.create_task(writing)
        self._aside.add_done_callback(self._aside_ended)

    def _aside_ended(self, aside: asyncio.Task[None]) -> None:
        self._aside = None
        if not aside.cancelled() and isinstance(error := aside.exception(), Exception):
            self._give_up(error)
        self._look_anew()

    def _next_due(self) -> float:
        at = self._generation.due_at()
        # A write may begin while this time is waited for, and must not go unnoticed for long.
        since = self._loop.time() if self._writing_since is None else self._writing_since
        at = min(at, since + self._limits.write_s)
        if not self._stream or self._writing_since is not None:
            return at
        if not self._committed:
            return min(at, self._commit_at())
        return min(at, self._written_at + self._limits.keep_alive_s)

    def _commit_at(self) -> float:
        if self._generation.phase == "preparing":
            return math.inf  # it has a time limit of its own, and fails with a status
        at = self._began_at + self._limits.commit_s
        if self._generation.accepted_at is not None:
            return min(at, self._generation.accepted_at + self._limits.commit_after_accept_s)
        return at

    def _act_on_time(self) -> None:
        now, since = self._loop.time(), self._writing_since
        if since is not None and now >= since + self._limits.write_s:
            raise ClientClosedRequest("The client stopped reading.")
        self._generation.on_due()
        if not self._stream or since is not None or self._aside is not None:
            return
        if not self._committed:
            if now >= self._commit_at():
                self._write_aside(self._begin_stream())
        elif now >= self._written_at + self._limits.keep_alive_s:
            sign = b"".join(self._encoder.keep_alive())
            self._write_aside(self._send_body(sign, more=True))

    def can_take(self, delta: SpokenDelta | None) -> bool:
        """Whether a piece of text can be written now: the stream has begun and nothing waits."""
        if self._given_up_for is not None or self._line is None:
            return False
        return delta is None or (
            self._opened
            and self._writing_since is None
            and self._aside is None
            and self._line.writable
            and len(delta.text) <= _PLAIN_CHARS
        )

    def take(self, delta: SpokenDelta) -> None:
        """Write a piece of text, in the turn in which it arrived."""
        assert self._line is not None
        try:
            frames = self._encoder.feed(delta)
        except Exception as error:
            self._give_up(error)
            return
        if frames:
            self._line.write(b"".join(frames))
            self._written_at = self._loop.time()

    async def _carry(self) -> None:
        await self._generation.start()
        if self._stream:
            await self._carry_stream()
        else:
            await self._carry_body()

    async def _carry_stream(self) -> None:
        while True:
            deltas = await self._generation.receive()
            if self._aside is not None:
                await asyncio.wait((self._aside,))  # its record leaves first
            frames = self._frames(deltas)
            ended = type(deltas[-1]) is Completed
            if not self._committed:
                if not frames and not ended:
                    continue
                await self._begin_stream(frames, more=not ended)
                self._look_anew()  # from now on it is silence that is due
            elif frames or ended:
                await self._send_body(b"".join(frames), more=not ended)
            if ended:
                return

    def _frames(self, deltas: Sequence[Delta]) -> list[Frame]:
        """The records of these Deltas, after the opening ones."""
        frames: list[Frame] = []
        feed = self._encoder.feed
        for delta in deltas:
            if not self._opened and type(delta) not in _BEFORE_THE_ANSWER:
                frames += self._open()
            frames += feed(delta)
        return frames

    def _open(self) -> Sequence[Frame]:
        if self._opened:
            return ()
        self._opened = True
        return self._encoder.open()

    async def _carry_body(self) -> None:
        feed = self._encoder.feed
        last: Delta = Accepted("", 0)
        while type(last) is not Completed:
            deltas = await self._generation.receive()
            for delta in deltas:
                feed(delta)
            last = deltas[-1]
        body = self._encoder.body()
        self._committed = True
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._further_headers,
        ]
        await self._write({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send_body(body, more=False)

    async def _begin_stream(self, frames: Sequence[Frame] = (), *, more: bool = True) -> None:
        # From here on, and no sooner: a task that is to do this may be ended before it begins.
        self._committed = True
        frames = [*self._open(), *frames]
        await self._write(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [*SSE_HEADERS, *self._further_headers],
            },
        )
        await self._send_body(b"".join(frames), more=more)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        if len(body) > _PIECE_BYTES:
            last = (len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES
            for at in range(0, last, _PIECE_BYTES):
                piece = body[at : at + _PIECE_BYTES]
                await self._write({"type": "http.response.body", "body": piece, "more_body": True})
            body = body[last:]
        await self._write({"type": "http.response.body", "body": body, "more_body": more})

    async def _write(self, message: Message) -> None:
        self._writing_since = self._loop.time()
        try:
            await self._send(message)
        except OSError:
            raise ClientClosedRequest("The client went away.") from None
        self._writing_since = None
        self._written_at = self._loop.time()


async def _end_tasks(*tasks: asyncio.Task[None] | None) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)

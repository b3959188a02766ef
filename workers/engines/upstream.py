"""An engine that is a chat server of its own, reached over HTTP.

Any OpenAI-compatible `/chat/completions` endpoint will do: vLLM, llama.cpp, Ollama, a hosted
service. It takes conversations and splits reasoning and tool calls itself; it takes no token ids
and cannot continue what another attempt began.

Our client's cancellation reaches the upstream as a closed connection, in any phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from schemas.errors import (
    ContextLengthExceeded,
    GenerationTimeout,
    ModelRequestRejected,
    ModelUnavailable,
    ServingError,
)
from schemas.model_card import Capabilities, ModelCard
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.sse_reader import SseReader
from workers.engines.upstream_errors import failed, refusal
from workers.engines.upstream_reply import ReplyReader
from workers.engines.upstream_request import request_body

T = TypeVar("T")

DEFAULT_CONTEXT_LENGTH: Final = 32_768

_CAPABILITIES: Final = Capabilities(vision=True, tools=True)
"""What cannot be asked of an upstream is taken for granted; the catalogue may say otherwise."""

_ERROR_BODY_BYTES: Final = 4096
_NO_MODEL_LIST: Final = (404, 405, 501)


class UpstreamTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for what, in seconds. There is no limit on a whole answer.

    Attributes:
        connect_s: For the connection.
        first_byte_s: From the request to the first byte of the answer's body; the upstream's own
            queue and the reading of the prompt fall into it.
        stall_s: Between two arrivals of bytes.
        usage_s: From the end of the choice to its usage.
        close_s: From the upstream's last word to the end of its answer, so that the connection can
            be used again.
    """

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    stall_s: float = 120.0
    usage_s: float = 5.0
    close_s: float = 0.1


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None  # vLLM, SGLang
    context_length: int | None = None  # hosted routers


class _ModelList(msgspec.Struct):
    data: list[_Model]


class _Aborted(Exception):
    """The request was aborted."""


class _Exchange:
    """One request on its way: can be aborted whatever it waits for."""

    def __init__(self) -> None:
        self.response: aiohttp.ClientResponse | None = None
        self._aborted = False
        self._timeout: asyncio.Timeout | None = None

    async def within(self, seconds: float, operation: Callable[[], Awaitable[T]]) -> T:
        """The operation's result.

        Raises:
            ServingError: The upstream cannot be reached, is silent, or is gone.
            _Aborted: `abort` was called before or meanwhile.
        """
        if self._aborted:
            raise _Aborted
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                return await operation()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._cause(
                ModelUnavailable("The model cannot be reached.", diagnostic=type(error).__name__)
            ) from None
        except TimeoutError:
            raise self._cause(
                GenerationTimeout(
                    "The model did not answer in time.", diagnostic=f"silent for {seconds} s"
                )
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._cause(failed(f"upstream connection: {type(error).__name__}")) from None
        finally:
            self._timeout = None

    def _cause(self, error: ServingError) -> ServingError | _Aborted:
        return _Aborted() if self._aborted else error

    def abort(self) -> None:
        self._aborted = True
        if self._timeout is not None and not self._timeout.expired():
            # Wakes whatever is awaited; `within` sees why.
            self._timeout.reschedule(asyncio.get_running_loop().time())
        if self.response is not None:
            self.response.close()


class UpstreamEngine:
    """Runs each choice as one streamed request to the upstream.

    Args:
        base_url: Up to and without `/chat/completions`, such as `http://host:8000/v1`.
        model: The upstream's name for the model.
        served_id: Our public id for it.
        slots: Requests to run at once.
        api_key: Sent as a bearer token.
        context_length: Used where the upstream does not tell its own.
        capabilities: What requests may ask of the model.
    """

    name = "upstream"
    takes_token_ids = False
    template_stop_strings: tuple[str, ...] = ()
    tokenizer = None

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        served_id: str,
        slots: int,
        api_key: str | None = None,
        timeouts: UpstreamTimeouts | None = None,
        context_length: int = DEFAULT_CONTEXT_LENGTH,
        capabilities: Capabilities = _CAPABILITIES,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._slots = slots
        self._timeouts = timeouts or UpstreamTimeouts()
        # Compressed, an event stream would arrive in lumps.
        self._headers = {"Accept-Encoding": "identity"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._card = ModelCard(
            id=served_id, context_length=context_length, capabilities=capabilities
        )
        self._session: aiohttp.ClientSession | None = None
        self._exchanges: dict[str, _Exchange] = {}

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def slots(self) -> int:
        return self._slots

    async def running(self) -> int:
        return len(self._exchanges)

    async def start(self) -> None:
        """Check that the upstream is there and ask for the model's window.

        Raises:
            ModelUnavailable: It cannot be reached.
            GenerationFailed: It refuses us.
        """
        self._session = aiohttp.ClientSession(
            # The default limits would make the 101st stream wait.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_read=None, sock_connect=self._timeouts.connect_s
            ),
            headers=self._headers,
        )
        try:
            window = await self._window(self._session)
        except BaseException:
            await self.stop()
            raise
        if window is not None:
            self._card = msgspec.structs.replace(self._card, context_length=window)

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check(self, request: EngineRequest) -> None:
        """Nothing is known before it runs."""

    async def abort(self, engine_request_id: str) -> None:
        if exchange := self._exchanges.get(engine_request_id):
            exchange.abort()

    def replay(self, request: EngineRequest, start: int = 0) -> Sequence[EngineChunk]:
        """It tells no ids, so there is no prefix."""
        return ()

    async def failed(self) -> str:
        """Never: the upstream is not ours to start again, and a request that fails tells so."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Run one choice; see `Engine.generate`."""
        body = request_body(request, self._model)
        reply = ReplyReader(request)
        exchange = self._exchanges[request.engine_request_id] = _Exchange()
        try:
            response = await self._begin(exchange, request, body)
            sse = SseReader()
            wait = self._timeouts.first_byte_s
            while received := await self._next(exchange, response, reply, wait):
                wait = self._timeouts.stall_s
                for record in sse.feed(received):
                    reply.feed(record)
                if chunk := reply.take():
                    yield chunk
                if reply.stopped:
                    break
            for record in sse.finish():
                reply.feed(record)
            yield reply.last()
        except _Aborted:
            yield EngineChunk(finish=EngineFinish(reason="abort"))
        finally:
            del self._exchanges[request.engine_request_id]
            if exchange.response is not None:
                # Does nothing to a connection whose answer was read to its end.
                exchange.response.close()

    async def _next(
        self,
        exchange: _Exchange,
        response: aiohttp.ClientResponse,
        reply: ReplyReader,
        wait: float,
    ) -> bytes:
        """Whatever has arrived; empty at the end."""
        if reply.finish is None:
            return await exchange.within(wait, response.content.readany)
        wait = self._timeouts.close_s if reply.done else self._timeouts.usage_s
        try:
            return await exchange.within(wait, response.content.readany)
        except ServingError:
            return b""  # the answer is whole; only its usage or its farewell is missing

    async def _begin(
        self, exchange: _Exchange, request: EngineRequest, body: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        """The beginning of an answer.

        Only the upstream can count the prompt. So a limit that may be dropped is dropped when the
        request is refused, whatever the upstream says about why.
        """
        try:
            return await self._post(exchange, msgspec.json.encode(body))
        except (ContextLengthExceeded, ModelRequestRejected):
            if request.job.sampling.limit.fallback_tokens is None:
                raise
            if exchange.response is not None:
                exchange.response.close()
        del body["max_tokens"]
        return await self._post(exchange, msgspec.json.encode(body))

    async def _post(self, exchange: _Exchange, body: bytes) -> aiohttp.ClientResponse:
        assert self._session is not None, "started"
        session = self._session

        async def send() -> aiohttp.ClientResponse:
            url = f"{self._base_url}/chat/completions"
            headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
            try:
                return await session.post(url, data=body, headers=headers, allow_redirects=False)
            except aiohttp.ServerDisconnectedError:
                # A kept connection that the upstream had just given up; a new one will do.
                return await session.post(url, data=body, headers=headers, allow_redirects=False)

        response = await exchange.within(self._timeouts.first_byte_s, send)
        exchange.response = response
        if response.status != 200:
            text = await exchange.within(
                self._timeouts.stall_s, lambda: response.content.read(_ERROR_BODY_BYTES)
            )
            raise refusal(response.status, text, response.headers.get("Retry-After"))
        return response

    async def _window(self, session: aiohttp.ClientSession) -> int | None:
        """The model's context length by the upstream's model list, if it tells."""
        exchange = _Exchange()

        async def read() -> tuple[int, bytes]:
            async with session.get(f"{self._base_url}/models", allow_redirects=False) as response:
                return response.status, await response.read()

        status, body = await exchange.within(self._timeouts.connect_s, read)
        if status in _NO_MODEL_LIST:
            return None
        if status != 200:
            raise refusal(status, body)
        try:
            models = msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        for model in models:
            if model.id == self._model:
                return model.max_model_len or model.context_length
        return None

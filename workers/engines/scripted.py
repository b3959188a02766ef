"""An engine that plays scripts: text, chunking, delays, gates, failures at a chosen point.

For tests and load only. Without a script of the test's own it obeys markers in the last user text
(`scripted_markers`) and answers a fixed sentence when there are none. Its tokenizer counts UTF-8
bytes; every piece of output is one token. A continued choice plays the same script from where the
ids of its prefix end; nothing before that is waited for or goes wrong again.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Literal, TypeAlias

import msgspec

from schemas.errors import GenerationFailed, UnsupportedValue
from schemas.job import ChatPrompt, Job
from schemas.message import TextPart
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from workers.engines import scripted_logprobs, scripted_markers
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest

CAPABILITIES: Final = Capabilities(
    tools=True,
    regex=True,
    grammar=True,
    completions=True,
    reasoning=ReasoningSupport(efforts=("none", "high"), default="none"),
)
"""All but vision; `msgspec.structs.replace` makes others."""

IMAGE_TOKENS: Final = 64
IMAGE_TOKEN: Final = 65_535

_SLOW_GAP_S: Final = 0.05
_PIECES = re.compile(r"\s*\S+|\s+")
_LOAD = re.compile(r"\[\[((?:(?:k|gap|ttft|phase)=\d+\s*)+)\]\]")
_TROUBLE = re.compile(r"\[\[(fail|hang|lose|crash):(start|\d+)\]\]")


class Text(msgspec.Struct, frozen=True):
    """One token with this text; `ids` overrides how many tokens it counts as.

    Of several tokens the first has all of the text, unless `pieces` tells what of it each has.
    """

    text: str
    ids: tuple[int, ...] | None = None
    pieces: tuple[str, ...] = ()


class Pause(msgspec.Struct, frozen=True):
    """Nothing for `seconds`. Pauses that end within the same `grid_s` end together.

    The lines of the grid lie `phase_s` after the multiples of `grid_s`.
    """

    seconds: float
    grid_s: float = 0.0
    phase_s: float = 0.0


class Gate(msgspec.Struct, frozen=True):
    """Wait until the test opens the gate."""

    event: asyncio.Event


class Trouble(msgspec.Struct, frozen=True):
    """Fail, hang for ever, be lost with all that runs (`Engine.failed`), or kill the process."""

    kind: Literal["fail", "hang", "lose", "crash"]


class End(msgspec.Struct, frozen=True):
    """The engine's own end; implied by the end of a script (`stop`)."""

    reason: str = "stop"
    matched: str | int | None = None


Step: TypeAlias = Text | Pause | Gate | Trouble | End
Script: TypeAlias = Callable[[EngineRequest], Iterable[Step]]


def ids_of(step: Text) -> tuple[int, ...]:
    """The ids that a piece of text is sampled as."""
    if step.ids is not None:
        return step.ids
    return (256 + zlib.crc32(step.text.encode()) % 32_000,)


def by_token(step: Text) -> Sequence[tuple[int, str]]:
    """The ids of a piece of text, each with what of the text it has."""
    ids = ids_of(step)
    return tuple(zip(ids, step.pieces or (step.text, *("" for _ in ids[1:])), strict=False))


def pieces(text: str) -> list[str]:
    """Words with their leading white space; joined they are `text`."""
    return _PIECES.findall(text)


def script_from_markers(request: EngineRequest) -> Iterator[Step]:
    """The script that the markers in the last user text ask for."""
    asked = scripted_markers.read(request)
    text = asked.marked
    answer: Iterable[str] = pieces(scripted_markers.answer(request.job, asked.said))
    gap = Pause(_SLOW_GAP_S) if "[[slow]]" in text else None
    first: Pause | None = None
    if load := _LOAD.search(text):
        values = dict(item.split("=") for item in load.group(1).split())
        answer = (f"tok{i} " for i in range(int(values.get("k", 64))))
        gap_s = int(values.get("gap", 0)) / 1000
        phase_s = int(values.get("phase", 0)) / 1000
        gap = Pause(gap_s, gap_s, phase_s) if gap_s else None
        first = Pause(int(values.get("ttft", 0)) / 1000, gap_s, phase_s)
    if request.reasoning_open:
        answer = chain(pieces(asked.thought), ("</think>",), answer)
    steps = _paced(answer, first, gap)
    if trouble := _TROUBLE.search(text):
        return _with_trouble(steps, trouble.group(1), trouble.group(2))
    return steps


def _paced(texts: Iterable[str], first: Pause | None, gap: Pause | None) -> Iterator[Step]:
    pause = first
    for text in texts:
        if pause is not None:
            yield pause
        yield Text(text)
        pause = gap


def _with_trouble(steps: Iterable[Step], kind: str, where: str) -> Iterator[Step]:
    after = 0 if where == "start" else int(where)
    tokens = 0
    for step in steps:
        if isinstance(step, Text):
            if tokens == after:
                break
            tokens += 1
        yield step
    match kind:
        case "fail":
            yield Trouble("fail")
        case "hang":
            yield Trouble("hang")
        case "lose":
            yield Trouble("lose")
        case _:
            yield Trouble("crash")


def divide(steps: Iterable[Step], prefix: Sequence[int]) -> tuple[Sequence[Text], Iterator[Step]]:
    """What of a script has been played, given the ids that came of it, and what is still to play.

    Raises:
        GenerationFailed: Ids do not come of this script.
    """
    played: list[Text] = []
    rest = iter(steps)
    at = 0
    while at < len(prefix):
        step = next(rest, None)
        if step is None or isinstance(step, End):
            raise GenerationFailed("The model failed to answer.", diagnostic="another's prefix")
        if not isinstance(step, Text):
            continue
        ids = ids_of(step)
        known = tuple(prefix[at : at + len(ids)])
        if ids[: len(known)] != known:
            raise GenerationFailed("The model failed to answer.", diagnostic="another's prefix")
        tokens = [Text(text, (token_id,)) for token_id, text in by_token(step)]
        played += tokens[: len(known)] if known else (step,)
        rest = chain(tokens[len(known) :], rest)
        at += len(known)
    return played, rest


def due_at(now: float, pause: Pause) -> float:
    """When a pause ends that begins now: on a grid line, the nearest one that is still to come.

    Whoever was woken by a grid line a moment ago is so due at the next one, not at that after it.
    """
    if not pause.grid_s:
        return now + pause.seconds
    since = now - pause.phase_s
    line = max(round((since + pause.seconds) / pause.grid_s), since // pause.grid_s + 1)
    return line * pause.grid_s + pause.phase_s


class ScriptedTokenizer:
    """UTF-8 bytes as token ids, and a chat template of one line per message.

    Args:
        vision: Images are part of the prompt; each counts as `IMAGE_TOKENS` tokens.
    """

    template = "<tool_call>"  # the markup of the calls that the engine writes

    def __init__(self, *, vision: bool = False) -> None:
        self._vision = vision

    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        assert isinstance(job.prompt, ChatPrompt)
        prompt = job.prompt
        ids: list[int] = []
        if prompt.tools and prompt.tool_choice.mode != "none":
            ids += b"tools: " + msgspec.json.encode(prompt.tools) + b"\n"
        for message in prompt.messages:
            ids += f"{message.role}: {message.text}".encode()
            for part in message.parts:
                if not isinstance(part, TextPart):
                    ids += self._image()
            for call in message.tool_calls:
                ids += f" {call.name} {call.arguments}".encode()
            ids += b"\n"
        return tuple(ids), prompt.reasoning.enabled

    def decode(
        self,
        token_ids: tuple[int, ...],
        *,
        skip_special_tokens: bool | None = None,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        return bytes(i for i in token_ids if i < 256).decode(errors="replace")

    def _image(self) -> tuple[int, ...]:
        if not self._vision:
            raise UnsupportedValue("This model does not take images.", param="messages")
        return (IMAGE_TOKEN,) * IMAGE_TOKENS


def _from_id(chunks: Sequence[EngineChunk], start: int) -> Sequence[EngineChunk]:
    """The chunks from the one of the `start`-th id on."""
    ids = 0
    for at, chunk in enumerate(chunks):
        if ids == start and chunk.token_ids:
            return chunks[at:]
        ids += len(chunk.token_ids)
    return ()


class _Running:
    """One request inside the engine: what it waits for now, and whether it was aborted."""

    __slots__ = ("aborted", "waiter")

    def __init__(self) -> None:
        self.aborted = False
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def abort(self) -> None:
        self.aborted = True
        self.wake()


class _Budget:
    """Counts a request's tokens and looks for its stop strings."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._produced = 0
        self._begun = False
        self._tail = ""
        self._keep = max((len(stop) for stop in request.stop_strings), default=1) - 1

    def spend(self, step: Text) -> EngineChunk:
        """The chunk for one piece of text, with the end if this was the last."""
        request = self._request
        ids = ids_of(step)
        self._produced += len(ids)
        finish = None
        if request.stop_strings:
            self._tail += step.text
            for stop in request.stop_strings:
                if stop in self._tail:
                    finish = EngineFinish(reason="stop", matched=stop)
            self._tail = self._tail[len(self._tail) - self._keep :] if self._keep else ""
        if finish is None and self._produced >= request.max_tokens:
            finish = EngineFinish(reason="length")
        begun, self._begun = self._begun, True
        return EngineChunk(
            text=step.text,
            token_ids=ids,
            logprobs=scripted_logprobs.of_output(by_token(step), request.job.sampling),
            prompt_logprobs=() if begun else scripted_logprobs.of_prompt(request),
            output_tokens=len(ids),
            input_tokens=len(request.prompt_ids),
            cached_tokens=0,
            finish=finish,
        )


class ScriptedEngine:
    """Plays a script per request.

    Args:
        served_id: Public id of the pretended model.
        slots: See `Engine.slots`.
        script: Steps for a request; by default those its markers ask for.
        context_length: Window, in (byte) tokens.
        capabilities: What its card says; by default everything but vision.
    """

    name = "scripted"
    takes_token_ids = True
    template_stop_strings: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        served_id: str = "scripted",
        slots: int = 256,
        script: Script = script_from_markers,
        context_length: int = 1_048_576,
        capabilities: Capabilities = CAPABILITIES,
    ) -> None:
        self._slots = slots
        self._script = script
        self._running: dict[str, _Running] = {}
        self._lost = asyncio.Event()
        self._ticks: dict[float, list[_Running]] = {}
        self._card = ModelCard(
            id=served_id,
            context_length=context_length,
            vocab_size=65_536,
            capabilities=capabilities,
        )
        self._tokenizer = ScriptedTokenizer(vision=capabilities.vision)

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def tokenizer(self) -> ScriptedTokenizer:
        return self._tokenizer

    @property
    def slots(self) -> int:
        return self._slots

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def running(self) -> int:
        return len(self._running)

    def lose(self) -> None:
        """From now on it generates no more: `failed` returns."""
        self._lost.set()

    async def failed(self) -> str:
        await self._lost.wait()
        return "scripted"

    async def check(self, request: EngineRequest) -> None:
        """Nothing is known before it runs."""

    async def abort(self, engine_request_id: str) -> None:
        if running := self._running.get(engine_request_id):
            running.abort()

    def replay(self, request: EngineRequest, start: int = 0) -> Sequence[EngineChunk]:
        """The tokens of the prefix; see `Text`."""
        played, _ = divide(self._script(request), request.prefix_ids)
        chunks = [
            EngineChunk(
                text=step.text,
                token_ids=step.ids or (),
                output_tokens=len(step.ids or ()),
                replayed=True,
            )
            for step in played
        ]
        return _from_id(chunks, start)

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Play the script, or what a prefix leaves of it; every `Text` is one chunk."""
        running = self._running[request.engine_request_id] = _Running()
        budget = _Budget(request)
        try:
            played, steps = divide(self._script(request), request.prefix_ids)
            for before in played:
                finish = budget.spend(before).finish
                if finish is not None:  # all that is missing is to say so
                    yield EngineChunk(finish=finish)
                    return
            for step in steps:
                match step:
                    case Text():
                        chunk = budget.spend(step)
                        yield chunk
                        if chunk.finish is not None:
                            return
                        await asyncio.sleep(0)  # no engine keeps the event loop to itself
                    case Pause():
                        await self._pause(running, step)
                    case Gate(event=event):
                        await self._until(running, event)
                    case Trouble(kind=kind):
                        await self._suffer(running, kind)
                    case End(reason=reason, matched=matched):
                        yield EngineChunk(finish=EngineFinish(reason=reason, matched=matched))
                        return
                if running.aborted:
                    yield EngineChunk(finish=EngineFinish(reason="abort"))
                    return
            yield EngineChunk(finish=EngineFinish(reason="stop"))
        finally:
            del self._running[request.engine_request_id]

    async def _suffer(self, running: _Running, kind: str) -> None:
        match kind:
            case "fail":
                raise GenerationFailed("The model failed to answer.", diagnostic="scripted")
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "lose":
                self.lose()
        await self._wait(running)

    async def _wait(self, running: _Running) -> None:
        if not running.aborted:
            running.waiter = asyncio.get_running_loop().create_future()
            await running.waiter

    async def _until(self, running: _Running, event: asyncio.Event) -> None:
        opened = asyncio.ensure_future(event.wait())
        opened.add_done_callback(lambda _: running.wake())
        try:
            await self._wait(running)
        finally:
            opened.cancel()

    async def _pause(self, running: _Running, pause: Pause) -> None:
        """Wait; requests due on one grid line wake in one turn, as in a real engine's step."""
        loop = asyncio.get_running_loop()
        due = due_at(loop.time(), pause)
        if (together := self._ticks.get(due)) is None:
            together = self._ticks[due] = []
            loop.call_at(due, self._tick, due)
        together.append(running)
        await self._wait(running)

    def _tick(self, due: float) -> None:
        for running in self._ticks.pop(due):
            running.wake()

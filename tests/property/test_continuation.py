"""Wherever a reply is cut, however often, what its attempts say together is what one would say.

Each case is run unharmed; then it is cut after every message, and a worker that knows nothing goes
on with what had arrived. Attempts may also group their tokens into chunks differently.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from schemas.delta import ReplyMessage, Started
from schemas.job import ChatPrompt, Job, Reasoning, TokenPrompt
from schemas.message import Message, TextPart, ToolChoice
from schemas.sampling import OutputLimit, SamplingParams, StopConditions
from tests.fixtures.continued import KeptDelivery, Said, next_attempt, runner, said
from tests.unit.parsing.recorded import TOOLS, WELL_FORMED
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine, Step, Text
from workers.output_format import OutputFormat
from workers.parsing.harmony import HARMONY_NAME
from workers.parsing.tools import TOOL_FORMATS

THOUGHT = "<think>\nLet me see:  one, two.\n\n</think>\n\nIt is 42, says the 😀 book."


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One Job and what its model writes.

    Attributes:
        outputs: Of each choice; a text is cut into tokens of a few characters, a tuple is tokens.
        chunky: Chunks of several tokens change nothing. Where the choice is stopped, what came in
            the same chunk after that has been generated, too, and counts.
    """

    outputs: tuple[str | tuple[str, ...], ...]
    prompt: ChatPrompt | TokenPrompt
    sampling: dict[str, Any] = {}
    reasoning: str | None = None
    hidden_reasoning: bool = False
    tools: str | None = None
    window: int = 0
    chunky: bool = True

    def job(self) -> Job:
        limit = OutputLimit(max_tokens=self.sampling.get("max_tokens", 4000))
        given = {name: value for name, value in self.sampling.items() if name != "max_tokens"}
        now = time.time()
        return Job(
            job_id="j",
            model="m",
            prompt=self.prompt,
            sampling=SamplingParams(**({"limit": limit} | given)),
            created_at=now,
            deadline=now + 600,
            queue_deadline=now + 600,
        )

    def tokens(self, choice: int) -> tuple[str, ...]:
        output = self.outputs[choice % len(self.outputs)]
        if isinstance(output, tuple):
            return output
        sizes = random.Random(choice)
        tokens = []
        while output:
            size = sizes.choice((1, 2, 3, 5) if len(self.outputs[0]) < 100 else (3, 5, 8, 13))
            tokens.append(output[:size])
            output = output[size:]
        return tuple(tokens)


def chat(*, effort: str | None = None, visible: bool = True, **prompt: Any) -> ChatPrompt:
    return ChatPrompt(
        messages=(Message(role="user", parts=(TextPart(text="hello"),)),),
        reasoning=Reasoning(effort=effort, visible=visible),  # type: ignore[arg-type]
        **prompt,
    )


RAW = TokenPrompt(prompts=(tuple(b"one prompt"),))
STOPS = {"stop": StopConditions(strings=(" STOP", "2, sages"))}

CASES: dict[str, Case] = {
    "plain": Case(outputs=("Hello, wörld 😀 and\n\nmore.",), prompt=chat()),
    "at the limit": Case(
        outputs=("a b c d e f g h i j",), prompt=chat(), sampling={"max_tokens": 5}
    ),
    "reasoning": Case(outputs=(THOUGHT,), prompt=chat(effort="high"), reasoning="qwen3"),
    "reasoning opened by the model": Case(outputs=(THOUGHT,), prompt=chat(), reasoning="qwen3"),
    "reasoning never closed": Case(
        outputs=("<think>on and on and ",), prompt=chat(effort="high"), reasoning="qwen3"
    ),
    "hidden reasoning": Case(
        outputs=(THOUGHT,), prompt=chat(effort="high", visible=False), reasoning="qwen3"
    ),
    "reasoning that is off": Case(
        outputs=("I think.\n</think>\n\nNo.",),
        prompt=chat(effort="none"),
        reasoning="qwen3",
        hidden_reasoning=True,
    ),
    "stop string": Case(
        outputs=("one ST two STOP three",), prompt=chat(), sampling=STOPS, chunky=False
    ),
    "stop string kept": Case(
        outputs=("one ST two STOP three",),
        prompt=chat(),
        sampling={"stop": StopConditions(strings=(" STOP",), include_in_text=True)},
        chunky=False,
    ),
    "stop string in reasoning": Case(
        outputs=(THOUGHT.replace("one", "a STOP"),),
        prompt=chat(effort="high"),
        reasoning="qwen3",
        sampling=STOPS,
    ),
    "stop pattern": Case(
        outputs=("it took 12 and 345 min",),
        prompt=chat(),
        sampling={"stop": StopConditions(patterns=("[0-9]{3}",))},
        chunky=False,
    ),
    "stop after a minimum": Case(
        outputs=(("a", " STOP", " b", " ST", "OP", " c", " STOP", " d"),),
        prompt=chat(),
        sampling=STOPS | {"limit": OutputLimit(max_tokens=40, min_tokens=6)},
        chunky=False,
    ),
    "log probabilities": Case(
        outputs=("Hello, wörld 😀.",), prompt=chat(), sampling={"logprobs": True, "top_logprobs": 2}
    ),
    "log probabilities of reasoning": Case(
        outputs=(THOUGHT,),
        prompt=chat(effort="high"),
        reasoning="qwen3",
        sampling={"logprobs": True, "report_token_ids": True},
    ),
    "log probabilities and a stop": Case(
        outputs=(("one", " ST", "x", " S", "T", "OP"),),
        prompt=chat(),
        sampling=STOPS | {"logprobs": True, "report_token_ids": True},
        chunky=False,
    ),
    "log probabilities and nearly a stop": Case(
        outputs=(("one", " ", "S", "T", "O", "x", " ST", "O"),),
        prompt=chat(),
        sampling=STOPS | {"logprobs": True, "report_token_ids": True},
    ),
    "several choices": Case(
        outputs=("first one", "the second, a longer one", THOUGHT),
        prompt=chat(effort="high"),
        reasoning="qwen3",
        sampling={"n": 3},
    ),
    "raw": Case(outputs=("raw <think> text",), prompt=RAW, sampling={"report_token_ids": True}),
    "raw, with echo": Case(
        outputs=("raw text",),
        prompt=TokenPrompt(prompts=(tuple(b"one"), tuple(b"two")), echo=True),
        sampling={
            "n": 2,
            "logprobs": True,
            "top_logprobs": 400,
            "prompt_logprobs_from": 0,
            "report_token_ids": True,
        },
    ),
    "raw, with a stop": Case(
        outputs=(("one", " ST", "x", " S", "T", "OP now"),),
        prompt=RAW,
        sampling=STOPS | {"logprobs": True, "report_token_ids": True},
        chunky=False,
    ),
    "repeating itself": Case(outputs=(("la ",) * 300,), prompt=chat(), window=64, chunky=False),
    "one call at most": Case(
        outputs=(WELL_FORMED["hermes"],),
        prompt=chat(tools=TOOLS, tool_choice=ToolChoice(parallel=False)),
        tools="hermes",
        chunky=False,
    ),
    "a call after reasoning": Case(
        outputs=("<think>I call.</think>" + WELL_FORMED["hermes"],),
        prompt=chat(effort="high", tools=TOOLS),
        reasoning="qwen3",
        tools="hermes",
        sampling={"logprobs": True},
    ),
    "harmony": Case(
        outputs=(
            "<|channel|>analysis<|message|>Hm. <b>" + "<|end|><|start|>assistant"
            "<|channel|>final<|message|>So it is.<|return|>",
        ),
        prompt=chat(effort="high"),
        reasoning=HARMONY_NAME,
    ),
}
CASES |= {
    f"calls of {name}": Case(outputs=(text,), prompt=chat(tools=TOOLS), tools=name)
    for name, text in WELL_FORMED.items()
}


class Grouping:
    """Plays a case; each attempt may put its tokens into chunks of other sizes."""

    def __init__(self, case: Case, seed: int | None) -> None:
        self._case = case
        self._seed = seed

    def __call__(self, request: EngineRequest) -> Iterator[Step]:
        tokens = self._case.tokens(request.choice)
        sizes = random.Random(f"{self._seed} {request.job.attempt} {request.choice}")
        at = 0
        while at < len(tokens):
            size = 1 if self._seed is None else sizes.choice((1, 2, 3, 7))
            pieces = tokens[at : at + size]
            ids = tuple(
                1000 + ord(piece[0]) % 7 if self._case.window else 1000 + at + number
                for number, piece in enumerate(pieces)
            )
            yield Text("".join(pieces), ids, pieces)
            at += size


async def play(case: Case, job: Job, *, seed: int | None = None) -> list[ReplyMessage]:
    """The messages of one attempt, run by a worker that knows of no other."""
    engine = ScriptedEngine(script=Grouping(case, seed))
    output_format = OutputFormat(
        reasoning=case.reasoning,
        hidden_reasoning=case.hidden_reasoning,
        tools=TOOL_FORMATS[case.tools] if case.tools else None,
    )
    delivery = KeptDelivery(job)
    await runner(engine, output_format, repetition_window=case.window).run(delivery)
    assert delivery.settled == ["ack"]
    return delivery.messages


def check(case: Case, messages: Sequence[ReplyMessage], whole: Said) -> None:
    together = said(messages, case.job().choices)
    assert together == whole


@pytest.mark.parametrize("name", CASES)
async def test_a_reply_goes_on_wherever_it_is_cut(name: str) -> None:
    case = CASES[name]
    job = case.job()
    messages = await play(case, job)
    whole = said(messages, job.choices)
    assert whole.usage is not None
    for cut in range(len(messages)):
        second = next_attempt(job, messages[:cut])
        rest = await play(case, second)
        check(case, [*messages[:cut], *rest], whole)


def text_and_end(messages: Sequence[ReplyMessage], choices: int) -> list[Any]:
    return [(choice.parts, choice.finished) for choice in said(messages, choices).choices]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.window])
async def test_a_reply_goes_on_however_its_tokens_come(name: str) -> None:
    """Chunks carry no meaning, neither before nor after the cuts."""
    case = CASES[name]
    job = case.job()
    unharmed = await play(case, job)
    for seed in range(4):
        messages: list[ReplyMessage] = []
        attempt = job
        cuts = random.Random(seed)
        while True:
            more = await play(case, attempt, seed=seed)
            if attempt.attempt == 4:
                break
            messages += more[: cuts.randrange(len(more))]
            attempt = next_attempt(msgspec.structs.replace(job, attempt=attempt.attempt), messages)
        together = [*messages, *more]
        assert text_and_end(together, job.choices) == text_and_end(unharmed, job.choices)
        if case.chunky:
            check(case, together, said(unharmed, job.choices))


@pytest.mark.parametrize("name", ["a call after reasoning", "several choices", "stop pattern"])
async def test_a_reply_goes_on_when_it_is_cut_twice(name: str) -> None:
    case = CASES[name]
    job = case.job()
    messages = await play(case, job)
    whole = said(messages, job.choices)
    for cut in range(0, len(messages), 5):
        second = next_attempt(job, messages[:cut])
        rest = await play(case, second)
        for again in range(0, len(rest), 3):
            arrived = [*messages[:cut], *rest[:again]]
            third = next_attempt(msgspec.structs.replace(job, attempt=2), arrived)
            check(case, [*arrived, *await play(case, third)], whole)


async def test_what_had_arrived_is_not_said_again() -> None:
    case = CASES["raw"]
    job = case.job()
    messages = await play(case, job)
    rest = await play(case, next_attempt(job, messages[:4]))
    had, left = said(messages[:4], 1).choices[0], said(rest, 1).choices[0]
    assert had.ids
    assert had.ids + left.ids == said(messages, 1).choices[0].ids
    assert (left.ids, left.told_ids) == (left.told_ids, left.ids)
    assert not set(had.ids) & set(left.ids)


async def test_a_finished_choice_is_not_generated_again() -> None:
    asked: list[int] = []

    class Asked(ScriptedEngine):
        def generate(self, request: EngineRequest) -> Any:
            asked.append(request.choice)
            return super().generate(request)

    case = CASES["several choices"]
    job = case.job()
    messages = await play(case, job)
    short = next(
        at
        for at, message in enumerate(messages)
        if any(getattr(d, "choice", None) == 0 and hasattr(d, "reason") for d in message.deltas)
    )
    second = next_attempt(job, messages[: short + 1])
    delivery = KeptDelivery(second)
    engine = Asked(script=Grouping(case, None))
    await runner(engine, OutputFormat(reasoning="qwen3")).run(delivery)
    assert asked == [1, 2]

    asked.clear()
    last = next_attempt(job, messages[:-1])
    assert last.continuation is not None
    assert all(prefix.finished for prefix in last.continuation.choices)
    delivery = KeptDelivery(last)
    await runner(engine, OutputFormat(reasoning="qwen3")).run(delivery)
    assert asked == []
    assert any(isinstance(delta, Started) for m in delivery.messages for delta in m.deltas)
    assert delivery.messages[-1].deltas[-1] == messages[-1].deltas[-1]


async def test_a_long_prefix_is_replayed_beside_the_event_loop() -> None:
    threads: set[bool] = set()

    class Watched(ScriptedEngine):
        def replay(self, request: EngineRequest, start: int = 0) -> Any:
            threads.add(threading.current_thread() is threading.main_thread())
            return super().replay(request, start)

    case = Case(outputs=(("word ",) * 400,), prompt=chat())
    job = case.job()
    messages = await play(case, job)
    for cut, beside in ((100, False), (390, True)):
        threads.clear()
        delivery = KeptDelivery(next_attempt(job, messages[:cut]))
        await runner(Watched(script=Grouping(case, None))).run(delivery)
        check(case, [*messages[:cut], *delivery.messages], said(messages, 1))
        assert threads == {not beside}

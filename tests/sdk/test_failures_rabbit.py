"""Workers lost over a real broker, as the official clients see it.

One is cut off and lives, one dies, one hangs; each with half an answer told. What the transport in
memory shows in all detail must be so here as well.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.answers import CONVERSATIONS, read_stream
from tests.fixtures.broker import Broker
from tests.fixtures.faults import Cut, rabbit_crew
from tests.fixtures.official import BODY, RAW, Told, ask
from tests.fixtures.requests import ALL, request_body
from tests.fixtures.stack import TimeLimits, until

pytestmark = pytest.mark.broker

FIFTY = [f"{number} " for number in range(1, 51)]
LIMITS = TimeLimits(commit_after_accept_s=0, silence_s=2.5)
HURT = ["cut off", "killed", "hung"]
ASKED = ("chat", "completions")
"""Where usage in a stream is asked for."""
LIMIT = {"responses": "max_output_tokens"}


def usage_of(told: Told, dialect: str, way: str) -> Any:
    if way == BODY:
        return told.answer["usage"]
    events = [event for event, _ in told.events]
    match dialect:
        case "responses":
            return events[-1]["response"]["usage"]
        case "messages":
            return events[-2]["usage"]
        case _:
            return events[-1]["usage"]


@pytest.mark.parametrize("hurt", HURT)
@pytest.mark.parametrize("way", [RAW, BODY])
async def test_count_to_fifty(broker: Broker, model: str, hurt: str, way: str) -> None:
    """Each number once and in order, one end, and tokens counted once, in every dialect."""
    async with rabbit_crew(broker.url, model, limits=LIMITS) as crew:
        url = crew.pod.url

        def body(dialect: str) -> dict[str, Any]:
            fields: dict[str, Any] = {LIMIT.get(dialect, "max_tokens"): 100}
            if dialect in ASKED and way == RAW:
                fields["stream_options"] = {"include_usage": True}
            return request_body(dialect, "Count.", model=model, **fields)

        unharmed = await crew.hire(Cut(FIFTY))
        references = await asyncio.gather(*(ask(url, d, way, body(d)) for d in ALL))
        await unharmed.leave()
        cut = Cut(FIFTY, 10)
        hand = await crew.hire(cut, slots=len(ALL))  # one that hangs is full, and takes no more
        asking = [asyncio.create_task(ask(url, d, way, body(d))) for d in ALL]
        await until(lambda: cut.arrivals == len(ALL))
        await crew.hire(Cut(FIFTY))
        if hurt == "cut off":
            await hand.sever()
            cut.gate.set()  # it goes on, and speaks to nobody
        elif hurt == "killed":
            await hand.kill()
        else:
            hand.freeze()
        answers = await asyncio.gather(*asking)
        if hurt == "hung":
            cut.gate.set()
            assert hand.thaw()  # the rest of its answers, which nobody waits for
        for dialect, told, reference in zip(ALL, answers, references, strict=True):
            assert told.error is None, (dialect, told.error)
            assert told.answer == reference.answer, dialect
            usage = usage_of(told, dialect, way)
            assert usage.get("completion_tokens", usage.get("output_tokens")) == 50
            if way == RAW:
                if dialect in CONVERSATIONS:
                    assert read_stream(dialect, told.sent).text == "".join(FIFTY)
                assert "".join(FIFTY) in told.text
        await until(lambda: not crew.pod.services.answers)
        assert crew.pod.services.admission.in_flight == 0

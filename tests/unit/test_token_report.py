"""What a worker tells beside the text of token prompts."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.delta import InternalsDelta, PromptDelta, PromptLogprob, TextDelta, TokensDelta
from schemas.errors import UnsupportedValue
from schemas.job import ChatPrompt, Job, TokenPrompt
from schemas.model_card import EngineAccess
from schemas.sampling import EngineOptions, OutputLimit, SamplingParams
from workers.engines.base import EngineChunk
from workers.engines.sglang import _access
from workers.token_report import TokenReport


def job(prompt: TokenPrompt | ChatPrompt | None = None, **sampling: Any) -> Job:
    return Job(
        job_id="j",
        model="m",
        prompt=prompt or TokenPrompt(prompts=((1,),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=1), **sampling),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )


def test_ordinary_jobs_have_no_report() -> None:
    assert not TokenReport.wanted(job(ChatPrompt(messages=())))
    assert not TokenReport.wanted(job(logprobs=True, top_logprobs=5))
    for wanted in (
        job(TokenPrompt(prompts=((1,),), echo=True)),
        job(prompt_logprobs_from=0),
        job(report_token_ids=True),
        job(engine=EngineOptions(hidden_states="last")),
        job(engine=EngineOptions(routed_experts=True)),
    ):
        assert TokenReport.wanted(wanted)


def test_the_prompt_is_told_once() -> None:
    report = TokenReport(2, "once", job())
    assert list(report.prompt(EngineChunk())) == [PromptDelta(2, "once")]
    assert list(report.prompt(EngineChunk())) == []
    assert list(TokenReport(2, "", job()).prompt(EngineChunk())) == []


@pytest.mark.rule("completions.echo")
def test_long_prompts_come_in_pieces() -> None:
    token = PromptLogprob(7, "x", b"x", -1.0)
    pieces = list(
        TokenReport(0, "text", job()).prompt(EngineChunk(prompt_logprobs=(token,) * 1100))
    )
    assert [len(piece.logprobs) for piece in pieces] == [512, 512, 76]
    assert [piece.text for piece in pieces] == ["text", "", ""]


@pytest.mark.rule("completions.return-token-ids")
def test_ids_come_before_their_text() -> None:
    chunk = EngineChunk(text="a", token_ids=(5, 6))
    text = (TextDelta(0, "a"),)
    assert TokenReport(0, "", job(report_token_ids=True)).around(chunk, chunk.token_ids, text) == (
        TokensDelta(0, (5, 6)),
        *text,
    )
    assert TokenReport(0, "", job()).around(chunk, chunk.token_ids, text) == text


@pytest.mark.rule("completions.return-hidden-states", "completions.return-routed-experts")
def test_the_inside_comes_last_and_has_a_limit() -> None:
    report = TokenReport(0, "", job())
    chunk = EngineChunk(hidden_states=[[0.5] * 10], routed_experts="AAEC")
    assert report.around(chunk, (), (TextDelta(0, "a"),)) == (
        TextDelta(0, "a"),
        InternalsDelta(0, [[0.5] * 10], "AAEC"),
    )
    with pytest.raises(UnsupportedValue) as caught:
        report.around(EngineChunk(hidden_states=[[0.5] * 4096] * 9), (), ())
    assert caught.value.param == "return_hidden_states"


@pytest.mark.rule(
    "completions.custom-logit-processor",
    "completions.lora-path",
    "completions.priority",
    "completions.return-hidden-states",
    "completions.return-routed-experts",
)
def test_the_operator_opens_options_by_starting_the_engine_with_them() -> None:
    nothing = _access({})
    assert nothing == EngineAccess()
    assert not any((nothing.logit_processors, nothing.hidden_states, nothing.routed_experts))
    assert nothing.priorities == (0, 0)
    opened = _access(
        {
            "enable_custom_logit_processor": True,
            "return_hidden_states_mode": "last",
            "enable_return_routed_experts": True,
            "enable_priority_scheduling": True,
            "lora_paths": ["tone=/models/tone", "/models/bare", {"lora_name": "sql"}],
        }
    )
    assert opened.logit_processors
    assert opened.hidden_states == ("last",)
    assert opened.routed_experts
    assert opened.adapters == ("tone", "sql")
    assert opened.priorities[0] < 0 < opened.priorities[1]
    assert _access({"lora_paths": {"tone": "/models/tone"}}).adapters == ("tone",)
    assert _access({"enable_return_hidden_states": True}).hidden_states == ("last", "all")

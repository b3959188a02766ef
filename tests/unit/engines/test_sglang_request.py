"""A request in SGLang's terms, where no engine is needed to see that it is right."""

from typing import Any

import pytest

from schemas.job import Job, JobClass, TokenPrompt
from schemas.sampling import EngineOptions, OutputLimit, SamplingParams
from workers.engines.base import EngineRequest
from workers.engines.sglang_launch import _ranks
from workers.engines.sglang_request import ModelFacts, arguments, check

FACTS = ModelFacts(context_length=100, max_prompt_tokens=90, vocab_size=50)


def a_request(
    job_class: JobClass = "interactive", priority: int | None = None, **more: Any
) -> EngineRequest:
    job = Job(
        job_id="j",
        model="m",
        job_class=job_class,
        prompt=TokenPrompt(prompts=((1,),)),
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=5), engine=EngineOptions(priority=priority)
        ),
        created_at=0,
        deadline=1,
        queue_deadline=1,
    )
    return EngineRequest(engine_request_id="e", job=job, prompt_ids=(1,), **more)


def test_more_stop_strings_than_sglang_takes_are_found_by_us_alone() -> None:
    stops = tuple(f"stop {number}" for number in range(64))
    request = a_request(stop_strings=stops)
    check(request, FACTS)
    params = arguments(request, FACTS)["sampling_params"]
    assert params["stop"] == list(stops[:32])
    assert params["no_stop_trim"] is True


@pytest.mark.rule("sharing.ranks")
@pytest.mark.parametrize(
    ("job_class", "asked", "ranked", "given"),
    [
        ("interactive", None, -1000, None),
        ("interactive", 7, -1000, 7),
        ("batch", None, -1000, -1000),
        ("batch", 100, -1000, -900),
        ("batch", None, None, None),
        ("batch", 7, None, 7),
    ],
)
def test_batch_work_stands_behind_every_live_request(
    job_class: JobClass, asked: int | None, ranked: int | None, given: int | None
) -> None:
    facts = ModelFacts(context_length=100, max_prompt_tokens=90, vocab_size=50, batch_rank=ranked)
    assert arguments(a_request(job_class, asked), facts).get("priority") == given


def test_ranks_are_used_where_sglang_has_them() -> None:
    assert _ranks({})["enable_priority_scheduling"]
    assert _ranks({})["disable_priority_preemption"]
    assert _ranks({"schedule_policy": "lpm"}) == {}
    assert _ranks({"enable_priority_scheduling": False}) == {}
    asked_for = _ranks({"enable_priority_scheduling": True})
    assert not asked_for["disable_priority_preemption"]

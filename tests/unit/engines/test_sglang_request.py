"""A request in SGLang's terms, where no engine is needed to see that it is right."""

from schemas.job import Job, TokenPrompt
from schemas.sampling import OutputLimit, SamplingParams
from workers.engines.base import EngineRequest
from workers.engines.sglang_request import ModelFacts, arguments, check

FACTS = ModelFacts(context_length=100, max_prompt_tokens=90, vocab_size=50)


def test_more_stop_strings_than_sglang_takes_are_found_by_us_alone() -> None:
    stops = tuple(f"stop {number}" for number in range(64))
    job = Job(
        job_id="j",
        model="m",
        prompt=TokenPrompt(prompts=((1,),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=5)),
        created_at=0,
        deadline=1,
        queue_deadline=1,
    )
    request = EngineRequest(engine_request_id="e", job=job, prompt_ids=(1,), stop_strings=stops)
    check(request, FACTS)
    params = arguments(request, FACTS)["sampling_params"]
    assert params["stop"] == list(stops[:32])
    assert params["no_stop_trim"] is True

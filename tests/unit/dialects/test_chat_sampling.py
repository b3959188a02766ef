"""Which sampling fields reach the Job, and how long an answer may be."""

from typing import Any

import pytest

from schemas.errors import RequestError
from schemas.model_card import Capabilities
from schemas.sampling import OutputLimit
from tests.unit.dialects.chat_jobs import (
    VALUE,
    card,
    chat,
)
from tests.unit.dialects.transcripts import CARD


@pytest.mark.rule("chat.sampling")
def test_sampling_reaches_the_job() -> None:
    sampling = chat(
        n=2,
        temperature=1,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=-2,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        seed=-7,
        logit_bias={"5": -100, "17": 3.5},
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=20,
    ).sampling
    assert (sampling.n, sampling.seed, sampling.top_k, sampling.min_p) == (2, -7, 40, 0.05)
    assert (sampling.temperature, sampling.top_p) == (1.0, 0.9)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 0.5)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((5, -100.0), (17, 3.5))
    assert sampling.stop.strings == ("a", "b")
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 20)


@pytest.mark.rule("chat.sampling-dropped", "chat.sampling-kept")
def test_four_fields_are_dropped_where_the_model_sets_them_itself() -> None:
    own = card(honors_sampling=False)
    dropped: dict[str, Any] = {
        "temperature": 1,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": 1,
    }
    kept: dict[str, Any] = {
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": 4,
        "stop": "x",
    }
    assert chat(own, **dropped, **kept) == chat(own, **kept)
    sampling = chat(own, **kept).sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (3, 0.1, 1.2)
    assert (sampling.seed, sampling.stop.strings) == (4, ("x",))


def test_a_top_k_beyond_the_vocabulary_is_the_vocabulary() -> None:
    assert chat(top_k=10**18).sampling.top_k == CARD.vocab_size
    assert chat(card(vocab_size=0), top_k=10**18).sampling.top_k == 2**30
    assert chat(top_k=-1).sampling.top_k == -1


@pytest.mark.rule("chat.n-needs-capability", "chat.logprobs-not-everywhere")
@pytest.mark.parametrize(
    ("fields", "capabilities", "param"),
    [
        ({"n": 2}, Capabilities(n=False), "n"),
        ({"logprobs": True}, Capabilities(logprobs=False), "logprobs"),
    ],
)
def test_capabilities_gate(fields: dict[str, Any], capabilities: Capabilities, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(card(capabilities=capabilities), **fields)
    assert (caught.value.code, caught.value.param) == (VALUE, param)
    assert chat(card(capabilities=capabilities), n=1, logprobs=False) is not None


BY_DEFAULT = OutputLimit(max_tokens=65_536, fallback_tokens=65_536, by_default=True)


@pytest.mark.rule("chat.max-completion-tokens", "chat.limit-default", "chat.limit-ignored")
@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, BY_DEFAULT),
        ({"max_tokens": 5}, OutputLimit(max_tokens=5, fallback_tokens=65_536)),
        ({"max_completion_tokens": 9}, OutputLimit(max_tokens=9, fallback_tokens=65_536)),
        (
            {"max_tokens": 5, "max_completion_tokens": 9},
            OutputLimit(max_tokens=5, fallback_tokens=65_536),
        ),
        ({"max_tokens": 10**18}, BY_DEFAULT),
        ({"max_tokens": 1e30}, BY_DEFAULT),
        ({"max_tokens": 131_073}, BY_DEFAULT),
        ({"max_tokens": 131_072}, OutputLimit(max_tokens=131_072, fallback_tokens=65_536)),
    ],
)
def test_output_length(fields: dict[str, Any], limit: OutputLimit) -> None:
    assert chat(**fields).sampling.limit == limit


@pytest.mark.rule("chat.limit-default-cap", "chat.limit-lowered", "chat.limit-default")
@pytest.mark.parametrize(
    ("cap", "context", "requested", "limit"),
    [
        (131_072, 1_048_576, None, 131_072),
        (131_072, 1_048_576, 131_073, 131_072),
        (131_072, 1_048_576, 131_071, 131_071),
        (131_072, 1_048_576, 1_048_577, 131_072),
        (None, 1_048_576, None, 65_536),
        (None, 100_000, None, 50_000),
        (None, 100_000, 70_000, 70_000),
    ],
)
def test_output_length_of_other_models(
    cap: int | None, context: int, requested: int | None, limit: int
) -> None:
    model = card(max_output_tokens=cap, context_length=context)
    assert chat(model, max_tokens=requested).sampling.limit.max_tokens == limit

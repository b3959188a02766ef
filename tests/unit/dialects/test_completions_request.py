"""Bodies of text completions: what they mean as Jobs, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import orjson
import pytest

from ingress.dialects.base import JobContext
from ingress.dialects.completions import Completions
from ingress.dialects.completions_request import CompletionRequest
from ingress.dialects.profile import OFFICIAL
from schemas.errors import RequestError
from schemas.job import Job, TokenPrompt
from schemas.model_card import Capabilities, EngineAccess, ModelCard
from schemas.sampling import (
    Ebnf,
    JsonObject,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StopConditions,
    StructuralTag,
)
from tests.unit.dialects.transcripts import CONTEXT

ABLE = Capabilities(completions=True, regex=True, grammar=True)
CARD = ModelCard(id="GLM-5.1", context_length=1000, vocab_size=10_000, capabilities=ABLE)
COMPLETIONS = Completions()


def card(**access: Any) -> ModelCard:
    """The model with engine options opened."""
    able = msgspec.structs.replace(ABLE, engine=EngineAccess(**access))
    return msgspec.structs.replace(CARD, capabilities=able)


def job_of(*, model_card: ModelCard = CARD, context: JobContext = CONTEXT, **fields: Any) -> Job:
    body = {"model": "glm-5.1", "prompt": [9703], **fields}
    return COMPLETIONS.normalise(COMPLETIONS.parse(body), model_card, context).job


def sampling_of(**fields: Any) -> SamplingParams:
    return job_of(**fields).sampling


def refusal(*, model_card: ModelCard = CARD, **fields: Any) -> tuple[int, str, str | None]:
    """Status, code and param; also checks that the message names what `param` names."""
    with pytest.raises(RequestError) as caught:
        job_of(model_card=model_card, **fields)
    error = caught.value
    assert error.message
    return error.status, error.code, error.param


# --- Availability --------------------------------------------------------------------------------


@pytest.mark.rule("completions.self-hosted-only")
def test_a_model_without_text_completions_has_no_such_endpoint() -> None:
    other = msgspec.structs.replace(CARD, capabilities=Capabilities(regex=True, grammar=True))
    assert refusal(model_card=other) == (404, "endpoint_not_supported", "model")
    # Whatever else is wrong for that model.
    assert refusal(model_card=other, prompt=[99_999])[0] == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ebnf": 'root ::= "A"'}, "ebnf"),
        ({"regex": "A"}, "regex"),
        ({"json_schema": {"type": "object"}}, "json_schema"),
        ({"structural_tag": {"format": {"type": "any_text"}}}, "structural_tag"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
@pytest.mark.rule("completions.constraints-need-engine")
def test_constraints_that_a_model_lacks_are_refused(fields: dict[str, Any], param: str) -> None:
    able = Capabilities(completions=True, json_schema=False, json_object=False)
    plain = msgspec.structs.replace(CARD, capabilities=able)
    assert refusal(model_card=plain, **fields) == (400, "unsupported_parameter", param)


# --- Prompts -------------------------------------------------------------------------------------


@pytest.mark.rule("completions.prompt")
def test_prompts() -> None:
    assert job_of(prompt=[9703]).prompt == TokenPrompt(prompts=((9703,),))
    assert job_of(prompt=[[1, 2], [0]]).prompt == TokenPrompt(prompts=((1, 2), (0,)))
    assert job_of(prompt=[[7]]).prompt == TokenPrompt(prompts=((7,),))
    assert job_of(prompt=[9999]).choices == 1
    assert job_of(prompt=[[1], [2], [3]], n=2).choices == 6


BAD_PROMPTS = [
    *([5, -1, 7], [10_000], [9_999_999], [4_611_686_018_427_387_905], [2**200], [True]),
    *([1, False], [1.0], [], [[1], []], [[]], ["hello"], [1, "x"], ["x", 1], "hello", "", None),
    *(5, True, {}, [None], [[1], 2], [1, [2]], [[[1]]], [[1], [2, 10_000]], [{}], [[1.5]], [["a"]]),
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=repr)
@pytest.mark.rule("completions.prompt-refused")
def test_bad_prompts(prompt: Any) -> None:
    body = orjson.loads(orjson.dumps(prompt) if prompt != [2**200] else b"[%d]" % 2**200)
    status, code, param = refusal(prompt=body)
    assert (status, code) == (400, "invalid_prompt")
    assert param is not None
    assert param.startswith("prompt")


def test_a_missing_prompt_is_a_missing_field() -> None:
    with pytest.raises(RequestError) as caught:
        COMPLETIONS.parse({"model": "m"})
    assert (caught.value.code, caught.value.param) == ("schema_validation_failed", "prompt")


@pytest.mark.parametrize("prompt", [[77_777], [-77], [77.5], ["77"], [True], [], 77], ids=repr)
@pytest.mark.rule("completions.prompt-refused")
def test_the_bad_prompt_of_a_batch_is_named_and_not_quoted(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        job_of(prompt=[[1], prompt])
    assert (caught.value.code, caught.value.param) == ("invalid_prompt", "prompt[1]")
    assert "`prompt[1]`" in caught.value.message
    assert "77" not in caught.value.message


def test_text_is_sent_to_chat() -> None:
    with pytest.raises(RequestError, match="/v1/chat/completions"):
        job_of(prompt="hello")


@pytest.mark.rule("completions.n")
def test_prompts_times_n_are_limited() -> None:
    assert job_of(prompt=[[1]] * 128).choices == 128
    assert job_of(prompt=[[1]] * 8, n=16).choices == 128
    assert refusal(prompt=[[1]] * 9, n=16) == (400, "unsupported_value", "n")
    assert refusal(prompt=[[1]] * 129) == (400, "invalid_prompt", "prompt")
    assert refusal(n=17) == (400, "unsupported_value", "n")
    assert refusal(n=0) == (400, "unsupported_value", "n")
    one = msgspec.structs.replace(CARD, capabilities=msgspec.structs.replace(ABLE, n=False))
    assert refusal(model_card=one, n=2) == (400, "unsupported_value", "n")


def test_tokens_of_all_prompts_are_limited() -> None:
    wide = msgspec.structs.replace(CARD, context_length=1 << 30)
    assert job_of(model_card=wide, prompt=[[1] * (1 << 19)] * 2)
    assert refusal(model_card=wide, prompt=[[1] * (1 << 19), [1] * ((1 << 19) + 1)]) == (
        400,
        "invalid_prompt",
        "prompt",
    )


def test_long_prompts_are_checked_quickly() -> None:
    wide = msgspec.structs.replace(CARD, context_length=1 << 30)
    prompt = list(range(10_000)) * 10
    started = time.perf_counter()
    job_of(model_card=wide, prompt=prompt)
    assert time.perf_counter() - started < 0.1


@pytest.mark.rule("completions.context-overflow")
def test_a_prompt_that_fills_the_window_is_refused() -> None:
    assert job_of(prompt=[1] * 999)
    for prompt in ([1] * 1000, [[1], [1] * 1000]):
        with pytest.raises(RequestError, match="maximum context length is 1000") as caught:
            job_of(prompt=prompt)
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


# --- Fields and their values ---------------------------------------------------------------------


@pytest.mark.rule("completions.max-tokens", "completions.min-tokens")
def test_limits() -> None:
    def limit(**fields: Any) -> OutputLimit:
        return sampling_of(**fields).limit

    assert limit() == OutputLimit(max_tokens=16, fallback_tokens=16)
    assert limit(max_tokens=2, min_tokens=2) == OutputLimit(
        max_tokens=2, fallback_tokens=2, min_tokens=2
    )
    assert limit(max_tokens=10**30).max_tokens == 1000
    capped = msgspec.structs.replace(CARD, max_output_tokens=10)
    assert limit(model_card=capped, max_tokens=20, min_tokens=15) == OutputLimit(
        max_tokens=10, fallback_tokens=10, min_tokens=10
    )


@pytest.mark.rule("completions.sampling-is-literal")
def test_what_is_not_said_has_the_documented_default_on_every_model() -> None:
    own = msgspec.structs.replace(CARD, honors_sampling=False)
    assert (
        sampling_of(model_card=own)
        == sampling_of()
        == SamplingParams(
            limit=OutputLimit(max_tokens=16, fallback_tokens=16),
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            min_p=0.0,
            frequency_penalty=0.0,
            presence_penalty=0.0,
            repetition_penalty=1.0,
        )
    )
    assert sampling_of(model_card=own, temperature=0.3, top_p=0.5) == sampling_of(
        temperature=0.3, top_p=0.5
    )
    body = {"model": "m", "prompt": [1], "temperature": 0.5}
    context = msgspec.structs.replace(CONTEXT, profile=OFFICIAL)
    assert COMPLETIONS.normalise(COMPLETIONS.parse(body), own, context).ignored == ()


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0, 0.0, 1, 2, 5.5], [-0.1, -1]),
        ("top_p", [0.001, 1, 1.0], [0, 1.1, -1]),
        ("min_p", [0, 0.5, 1], [-0.1, 1.1]),
        ("frequency_penalty", [-2, 0, 2.0], [-2.1, 2.1]),
        ("presence_penalty", [-2, 0, 2.0], [-2.1, 2.1]),
        ("repetition_penalty", [0.1, 1, 2], [0, -1, 2.1]),
    ],
)
@pytest.mark.rule(
    "completions.temperature",
    "completions.top-p",
    "completions.min-p",
    "completions.frequency-penalty",
    "completions.presence-penalty",
    "completions.repetition-penalty",
)
def test_numbers(field: str, good: list[float], bad: list[float]) -> None:
    for value in good:
        assert getattr(sampling_of(**{field: value}), field) == value
    for value in bad:
        assert refusal(**{field: value}) == (400, "unsupported_value", field)
    for value in ("1", True, [1]):
        assert refusal(**{field: value}) == (400, "schema_validation_failed", field)
    assert sampling_of(**{field: None}) == sampling_of()


@pytest.mark.rule("completions.top-k")
def test_top_k() -> None:
    assert [sampling_of(top_k=k).top_k for k in (-1, 1, 50, 10**20)] == [-1, 1, 50, 10_000]
    for value in (0, -2):
        assert refusal(top_k=value) == (400, "unsupported_value", "top_k")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": 0}, "unsupported_value", "max_tokens"),
        ({"max_tokens": -5}, "unsupported_value", "max_tokens"),
        ({"max_tokens": 1.0}, "unsupported_value", "max_tokens"),
        ({"max_tokens": "3"}, "schema_validation_failed", "max_tokens"),
        ({"min_tokens": -1}, "unsupported_value", "min_tokens"),
        ({"min_tokens": 17}, "unsupported_value", "min_tokens"),
        ({"min_tokens": 3, "max_tokens": 2}, "unsupported_value", "min_tokens"),
        ({"stop": ""}, "unsupported_value", "stop"),
        ({"stop": ["a", ""]}, "unsupported_value", "stop[1]"),
        ({"stop": ["a"] * 65}, "unsupported_value", "stop"),
        ({"stop": 5}, "schema_validation_failed", "stop"),
        ({"stop_token_ids": [-1]}, "unsupported_value", "stop_token_ids[0]"),
        ({"stop_token_ids": [10_000]}, "unsupported_value", "stop_token_ids"),
        ({"stop_token_ids": [True]}, "schema_validation_failed", "stop_token_ids[0]"),
        ({"stop_token_ids": 5}, "schema_validation_failed", "stop_token_ids"),
        ({"stop_token_ids": [1] * 1025}, "unsupported_value", "stop_token_ids"),
        ({"logit_bias": {"9999999": 5}}, "unsupported_value", "logit_bias"),
        ({"logit_bias": {"-3": 5}}, "unsupported_value", "logit_bias"),
        ({"logit_bias": {"x": 5}}, "unsupported_value", "logit_bias"),
        ({"logit_bias": {"1": 101}}, "unsupported_value", "logit_bias"),
        ({"logit_bias": {"1": True}}, "schema_validation_failed", "logit_bias"),
        ({"logit_bias": [1]}, "schema_validation_failed", "logit_bias"),
        ({"n": True}, "schema_validation_failed", "n"),
        ({"stream": 1}, "schema_validation_failed", "stream"),
        ({"stream_options": []}, "schema_validation_failed", "stream_options"),
        ({"seed": 2**63}, "unsupported_value", "seed"),
        ({"logprobs": 21}, "unsupported_value", "logprobs"),
        ({"logprobs": -1}, "unsupported_value", "logprobs"),
        ({"logprobs": True}, "schema_validation_failed", "logprobs"),
        ({"echo": "yes"}, "schema_validation_failed", "echo"),
        ({"ebnf": ""}, "unsupported_value", "ebnf"),
        ({"ebnf": {}}, "schema_validation_failed", "ebnf"),
        ({"regex": ""}, "unsupported_value", "regex"),
        ({"json_schema": "not json"}, "unsupported_value", "json_schema"),
        ({"json_schema": "[1]"}, "schema_validation_failed", "json_schema"),
        ({"json_schema": 5}, "schema_validation_failed", "json_schema"),
        ({"structural_tag": "{}"}, "schema_validation_failed", "structural_tag.format"),
        ({"structural_tag": "{"}, "unsupported_value", "structural_tag"),
        ({"response_format": {"type": "xml"}}, "unsupported_value", "response_format.type"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"best_of": 1, "n": 2}, "unsupported_parameter", "best_of"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"suffix": ""}, "unsupported_parameter", "suffix"),
    ],
    ids=str,
)
@pytest.mark.rule(
    "completions.max-tokens",
    "completions.min-tokens",
    "completions.stop",
    "completions.stop-token-ids",
    "completions.logit-bias",
    "completions.best-of",
    "completions.suffix",
)
def test_values_that_are_not_allowed(fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal(**fields) == (400, code, param)


@pytest.mark.rule(
    "completions.stop",
    "completions.stop-token-ids",
    "completions.stop-regex",
    "completions.ignore-eos",
    "completions.no-stop-trim",
)
def test_stop_conditions() -> None:
    assert sampling_of(stop="\n").stop == StopConditions(strings=("\n",))
    assert sampling_of(
        stop=["a", "b"],
        stop_token_ids=[5, 9999],
        stop_regex=["x{2}", r"\d"],
        ignore_eos=True,
        no_stop_trim=True,
    ).stop == StopConditions(
        strings=("a", "b"),
        patterns=("x{2}", r"\d"),
        token_ids=(5, 9999),
        ignore_eos=True,
        include_in_text=True,
    )
    assert sampling_of(stop_regex="[.!?]").stop.patterns == ("[.!?]",)
    nothing = {"stop": [], "stop_token_ids": [], "stop_regex": [], "ignore_eos": None}
    assert sampling_of(**nothing).stop == StopConditions()


@pytest.mark.parametrize(
    "pattern", ["a*", "(", "^a", "", ["a"] * 33, ["a", "b+"], "a{500}", "(?=a)a"], ids=str
)
@pytest.mark.rule("completions.stop-regex-bounded")
def test_stop_patterns_that_cannot_be_honoured(pattern: Any) -> None:
    status, code, param = refusal(stop_regex=pattern)
    assert (status, code, param) == (400, "unsupported_value", "stop_regex")


@pytest.mark.rule("completions.logit-bias", "completions.seed", "completions.skip-special-tokens")
def test_other_sampling_fields() -> None:
    sampling = sampling_of(
        logit_bias={"5": 1, "9999": -100.0},
        seed=-7,
        n=2,
        skip_special_tokens=False,
        best_of=2,
        suffix=None,
    )
    assert sampling.logit_bias == ((5, 1.0), (9999, -100.0))
    assert (sampling.seed, sampling.n) == (-7, 2)
    assert not sampling.skip_special_tokens
    assert sampling_of(skip_special_tokens=None).skip_special_tokens


@pytest.mark.rule("completions.user")
def test_unknown_fields_have_no_effect() -> None:
    assert job_of(user="me", metadata={"a": 1}, use_beam_search=True) == job_of()


# --- Constraints ---------------------------------------------------------------------------------

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"ebnf": 'root ::= "A" | "B"'}, Ebnf(grammar='root ::= "A" | "B"')),
        ({"regex": "[ab]+"}, Regex(pattern="[ab]+")),
        ({"structural_tag": TAG}, StructuralTag(spec=TAG)),
        ({"structural_tag": orjson.dumps(TAG).decode()}, StructuralTag(spec=TAG)),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "structural_tag", **TAG}}, StructuralTag(spec=TAG)),
        ({"response_format": {"type": "text"}, "regex": "a"}, Regex(pattern="a")),
    ],
    ids=str,
)
@pytest.mark.rule(
    "completions.ebnf",
    "completions.regex",
    "completions.structural-tag",
    "completions.response-format",
)
def test_constraints(fields: dict[str, Any], constraint: Any) -> None:
    assert sampling_of(**fields).constraint == constraint


@pytest.mark.rule("completions.json-schema", "completions.response-format")
def test_json_schemas_are_made_enforceable() -> None:
    whole = {"$ref": "#/$defs/o", "$defs": {"o": OBJECT}}
    wanted = sampling_of(json_schema=whole).constraint
    assert isinstance(wanted, JsonSchema)
    assert "$ref" not in str(wanted.schema)
    assert wanted == sampling_of(json_schema=orjson.dumps(whole).decode()).constraint
    spelled = {"type": "json_schema", "json_schema": {"name": "x", "schema": whole}}
    assert sampling_of(response_format=spelled).constraint == wanted
    assert refusal(json_schema={"$ref": "https://x.example/y"})[1] == "json_schema_refs_remote"
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"properties": {"a": deep}}
    assert refusal(json_schema=deep)[0] == 400


@pytest.mark.rule("completions.one-constraint")
def test_at_most_one_constraint() -> None:
    given: dict[str, Any] = {
        "ebnf": 'root ::= "A"',
        "regex": "A",
        "json_schema": OBJECT,
        "structural_tag": TAG,
        "response_format": {"type": "json_object"},
    }
    names = list(given)
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            both = {first: given[first], second: given[second]}
            assert refusal(**both) == (400, "unsupported_value", second)


# --- Log probabilities ---------------------------------------------------------------------------


def logprobs_of(**fields: Any) -> tuple[bool, int, tuple[int, ...], int | None]:
    sampling = sampling_of(prompt=[1, 2, 3], **fields)
    return (
        sampling.logprobs,
        sampling.top_logprobs,
        sampling.logprob_token_ids,
        sampling.prompt_logprobs_from,
    )


@pytest.mark.rule(
    "completions.logprobs",
    "completions.echo",
    "completions.return-logprob",
    "completions.logprob-start-len",
    "completions.top-logprobs-num",
    "completions.token-ids-logprob",
)
def test_log_probabilities() -> None:
    nothing = (False, 0, (), None)
    assert logprobs_of() == nothing
    assert logprobs_of(logprobs=0) == (True, 0, (), None)
    assert logprobs_of(logprobs=5) == (True, 5, (), None)
    assert logprobs_of(echo=True) == nothing
    assert logprobs_of(echo=True, logprobs=2) == (True, 2, (), 0)
    assert logprobs_of(return_logprob=True) == (True, 0, (), None)
    assert logprobs_of(return_logprob=True, logprob_start_len=-1) == (True, 0, (), None)
    assert logprobs_of(logprob_start_len=1) == (True, 0, (), 1)
    assert logprobs_of(logprob_start_len=3) == (True, 0, (), 3)
    assert logprobs_of(top_logprobs_num=4) == (True, 4, (), None)
    assert logprobs_of(token_ids_logprob=[7, 8]) == (True, 0, (7, 8), None)
    assert logprobs_of(return_text_in_logprobs=True) == (True, 0, (), None)
    assert logprobs_of(return_logprob=False, top_logprobs_num=4, logprob_start_len=0) == nothing
    assert logprobs_of(logprobs=1, top_logprobs_num=4) == (True, 4, (), None)
    assert logprobs_of(logprobs=5, top_logprobs_num=4) == (True, 5, (), None)
    assert logprobs_of(echo=True, logprobs=1, logprob_start_len=2) == (True, 1, (), 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs_num": 21}, "top_logprobs_num"),
        ({"token_ids_logprob": [10_000]}, "token_ids_logprob"),
        ({"token_ids_logprob": [-1]}, "token_ids_logprob[0]"),
        ({"token_ids_logprob": [1] * 101}, "token_ids_logprob"),
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"logprob_start_len": 2}, "logprob_start_len"),
        ({"prompt": [[1, 2, 3], [1]], "logprob_start_len": 2}, "logprob_start_len"),
    ],
    ids=str,
)
@pytest.mark.rule(
    "completions.top-logprobs-num", "completions.token-ids-logprob", "completions.logprob-start-len"
)
def test_log_probabilities_that_are_not_allowed(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields) == (400, "unsupported_value", param)


def test_a_model_without_log_probabilities() -> None:
    plain = msgspec.structs.replace(ABLE, logprobs=False)
    other = msgspec.structs.replace(CARD, capabilities=plain)
    assert refusal(model_card=other, logprobs=0) == (400, "unsupported_value", "logprobs")
    assert refusal(model_card=other, return_logprob=True)[2] == "return_logprob"


def test_log_probabilities_of_prompts_are_limited() -> None:
    wide = msgspec.structs.replace(CARD, context_length=1 << 20)
    prompt = [[1] * 4096] * 4
    assert job_of(model_card=wide, prompt=prompt, echo=True, logprobs=1)
    assert refusal(model_card=wide, prompt=prompt, echo=True, logprobs=2)[2] == "logprobs"
    assert refusal(model_card=wide, prompt=prompt, echo=True, logprobs=1, n=2)[2] == "logprobs"
    assert job_of(model_card=wide, prompt=prompt, logprobs=20)
    assert job_of(model_card=wide, prompt=prompt, logprob_start_len=4090, top_logprobs_num=20)
    assert (
        refusal(model_card=wide, prompt=prompt, logprob_start_len=0, top_logprobs_num=20)[2]
        == "logprob_start_len"
    )


# --- The engine's own options --------------------------------------------------------------------


@pytest.mark.rule("completions.custom-params")
def test_custom_params() -> None:
    params = {"a": 1, "b": None, "c": [1, "x"], "d": {"e": 2.5}}
    assert sampling_of(custom_params=params).engine.custom_params == params
    for bad in ({"__private": 1}, {"a": [[1]]}, {"a": {"b": {}}}, {str(i): 1 for i in range(65)}):
        assert refusal(custom_params=bad) == (400, "unsupported_value", "custom_params")
    assert refusal(custom_params=[1])[1] == "schema_validation_failed"


PROCESSOR = '{"callable": "80049526"}'


@pytest.mark.rule("completions.custom-logit-processor")
def test_code_is_refused_unless_enabled() -> None:
    assert refusal(custom_logit_processor=PROCESSOR) == (
        400,
        "unsupported_parameter",
        "custom_logit_processor",
    )
    opened = card(logit_processors=True)
    job = job_of(model_card=opened, custom_logit_processor=PROCESSOR)
    assert job.sampling.engine.logit_processor == PROCESSOR
    for bad in ("", "x", "[]", "{}", '{"callable": 5}', '{"callable": "zz"}', "null"):
        assert refusal(model_card=opened, custom_logit_processor=bad)[1] == "unsupported_value"


@pytest.mark.rule("completions.lora-path")
def test_adapters_by_name() -> None:
    opened = card(adapters=("tone",))
    assert sampling_of(model_card=opened, lora_path="tone").engine.adapter == "tone"
    for name in ("/etc/passwd", "../tone", "", "other"):
        assert refusal(model_card=opened, lora_path=name)[1:] == ("unsupported_value", "lora_path")
    assert refusal(lora_path="tone")[1:] == ("unsupported_value", "lora_path")


@pytest.mark.rule("completions.priority")
def test_priorities_stay_within_the_range() -> None:
    assert sampling_of(priority=5).engine.priority is None
    opened = card(priorities=(-1, 10))
    ranks = [sampling_of(model_card=opened, priority=p).engine.priority for p in (-(10**30), 3, 99)]
    assert ranks == [-1, 3, 10]
    assert sampling_of(model_card=opened).engine.priority is None


@pytest.mark.rule("completions.return-hidden-states", "completions.return-routed-experts")
def test_the_models_inside_is_shown_only_where_enabled() -> None:
    for value in (True, "last"):
        assert refusal(return_hidden_states=value) == (
            400,
            "unsupported_parameter",
            "return_hidden_states",
        )
    assert refusal(return_routed_experts=True)[1:] == (
        "unsupported_parameter",
        "return_routed_experts",
    )
    assert job_of(return_hidden_states=False, return_routed_experts=False) == job_of()
    last = card(hidden_states=("last",), routed_experts=True)
    assert sampling_of(model_card=last, return_hidden_states="last").engine.hidden_states == "last"
    assert sampling_of(model_card=last, return_routed_experts=True).engine.routed_experts
    assert refusal(model_card=last, return_hidden_states=True)[1] == "unsupported_parameter"
    every = card(hidden_states=("last", "all"))
    assert sampling_of(model_card=every, return_hidden_states=True).engine.hidden_states == "all"
    assert refusal(return_hidden_states="first")[1] == "unsupported_value"


@pytest.mark.rule("completions.rid", "completions.spaces-between-special-tokens")
def test_labels_and_spaces() -> None:
    assert sampling_of(rid="run-7.a_b").engine.label == "run-7.a_b"
    for bad in ("", "a b", "a/b", "x" * 65, "ü"):
        assert refusal(rid=bad) == (400, "unsupported_value", "rid")
    assert refusal(rid=["a"]) == (400, "schema_validation_failed", "rid")
    assert not sampling_of(spaces_between_special_tokens=False).spaces_between_special_tokens
    assert sampling_of(spaces_between_special_tokens=None).spaces_between_special_tokens


@pytest.mark.rule("completions.return-token-ids", "completions.echo")
def test_what_is_told_beside_the_text() -> None:
    assert sampling_of(return_token_ids=True).report_token_ids
    counting = {"stream_options": {"continuous_usage_stats": True}}
    assert sampling_of(stream=True, **counting).report_token_ids
    assert not sampling_of(**counting).report_token_ids
    assert not sampling_of().report_token_ids
    assert job_of(echo=True).prompt == TokenPrompt(prompts=((9703,),), echo=True)


PASSED_ON = {
    *("custom_params", "ignore_eos", "no_stop_trim", "spaces_between_special_tokens"),
    *("stop_regex", "structural_tag", "custom_logit_processor", "logprob_start_len", "lora_path"),
    *("priority", "return_hidden_states", "return_logprob", "return_routed_experts"),
    *("return_text_in_logprobs", "rid", "token_ids_logprob", "top_logprobs_num"),
}


def test_every_documented_field_is_known() -> None:
    documented = PASSED_ON | {
        *("model", "prompt", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "stop_token_ids"),
        *("stream", "ebnf", "regex", "json_schema", "logit_bias", "n", "skip_special_tokens"),
    }
    assert documented <= set(CompletionRequest.model_fields)
    assert len(PASSED_ON) == 17


@pytest.mark.rule("completions.model")
def test_the_model_is_required() -> None:
    for body in ({"prompt": [1]}, {"prompt": [1], "model": 5}):
        with pytest.raises(RequestError) as caught:
            COMPLETIONS.parse(body)
        assert (caught.value.code, caught.value.param) == ("schema_validation_failed", "model")

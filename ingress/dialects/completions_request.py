"""The typed body of text completions: prompts of token ids, and the engine's own options.

Everything here can be judged without knowing the model; what depends on it is checked when the
request is normalised. Fields that have no effect are not declared: extra fields are ignored.

Source: Tokenized completions, sections 2 (request) and 3 (pass-through fields).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from ingress.dialects.response_format import (
    Pattern,
    ResponseFormat,
    StructuralTagFormat,
    TextFormat,
)
from ingress.dialects.sampling_fields import (
    Biases,
    Choices,
    MinP,
    Penalty,
    PositiveInteger,
    RepetitionPenalty,
    Seed,
    StopStrings,
    TopK,
    TopLogprobs,
    TopP,
    strings,
)
from ingress.dialects.validation import (
    Entries,
    Flag,
    Integer,
    WireModel,
    bad_parameter,
    bad_prompt,
    bad_shape,
    bad_value,
    check_depth,
)
from schemas.stop_pattern import MAX_PATTERNS, StopAutomaton, StopPatternError

MAX_TOTAL_CHOICES = 128
"""Prompts times `n`."""

MAX_PROMPT_TOKENS = 1 << 20
"""Of all prompts together."""

MAX_STOP_TOKENS = 1024
MAX_ASKED_TOKENS = 100
MAX_CUSTOM_PARAMS = 64

_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")

Prompts: TypeAlias = tuple[tuple[int, ...], ...]

# --- Prompts -------------------------------------------------------------------------------------


def _prompts(value: Any) -> Prompts:
    """One prompt or several, as several. Long prompts are common: no Python code runs per id."""
    if isinstance(value, str):
        raise bad_prompt("must be token ids; send text to /v1/chat/completions")
    if not isinstance(value, list) or not value:
        raise bad_prompt("must be a non-empty array of token ids, or of arrays of token ids")
    if isinstance(value[0], list):
        if len(value) > MAX_TOTAL_CHOICES:
            raise bad_prompt(f"must have at most {MAX_TOTAL_CHOICES} prompts")
        prompts = tuple(_token_ids(prompt, index) for index, prompt in enumerate(value))
    else:
        prompts = (_token_ids(value, None),)
    if sum(map(len, prompts)) > MAX_PROMPT_TOKENS:
        raise bad_prompt(f"must have at most {MAX_PROMPT_TOKENS} token ids")
    return prompts


def _token_ids(value: Any, index: int | None) -> tuple[int, ...]:
    """One prompt; `index` is its place among several."""
    if not isinstance(value, list):
        raise bad_prompt("must be an array of token ids, as the first one is", field=index)
    if not value:
        raise bad_prompt("must not be empty", field=index)
    # `type` and not `isinstance`: `true` is an `int` to Python, but no token id.
    if set(map(type, value)) != {int}:
        raise bad_prompt("must have nothing but integers as token ids", field=index)
    if min(value) < 0:
        raise bad_prompt("must not have negative token ids", field=index)
    return tuple(value)


# --- Options -------------------------------------------------------------------------------------


class CompletionStreamOptions(WireModel):
    """Options of a stream."""

    include_usage: Flag = False
    continuous_usage_stats: Flag = False


def _decoded(value: Any) -> Any:
    """JSON that may also come as a string of JSON."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise bad_value("must be an object, or a string of JSON that is one") from None
    if not isinstance(value, dict):
        raise bad_shape("must be an object")
    return check_depth(value)


def _stop_patterns(value: str | list[str]) -> tuple[str, ...]:
    patterns = strings(value)
    if len(patterns) > MAX_PATTERNS:
        raise bad_value(f"must have at most {MAX_PATTERNS} entries")
    try:
        StopAutomaton(patterns)
    except StopPatternError as error:
        raise bad_value(f"has a pattern that {error}") from None
    return patterns


def _custom_params(value: dict[str, Any]) -> dict[str, Any]:
    """Flat data, since the engine carries no other; names of its own are out of bounds."""
    if len(value) > MAX_CUSTOM_PARAMS:
        raise bad_value(f"must have at most {MAX_CUSTOM_PARAMS} entries")
    for name, item in value.items():
        if name.startswith("__"):
            raise bad_value("must not have names that begin with `__`")
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        if any(isinstance(child, dict | list) for child in inner):
            raise bad_value("must have scalars, or flat arrays and objects of them, as values")
    return value


def _logit_processor(value: str) -> str:
    """At least of the form the engine reads: anything else would end its scheduler."""
    try:
        bytes.fromhex(orjson.loads(value)["callable"])
    except (orjson.JSONDecodeError, ValueError, TypeError, KeyError, IndexError):
        raise bad_value("must be a serialised logit processor") from None
    return value


def _label(value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise bad_value("must have 1 to 64 letters, digits, dots, underscores or dashes")
    return value


def _hidden_states(value: Any) -> Literal["all", "last"] | None:
    if value is None or value is False:
        return None
    if value is True or value == "last":
        return "all" if value is True else "last"
    raise bad_value('must be a boolean or "last"')


def _none(value: Any) -> None:
    if value is not None:
        raise bad_parameter("is not supported")


TokenId: TypeAlias = Annotated[Integer, Field(ge=0)]


class CompletionRequest(WireModel):
    """A request for text completions."""

    model: str
    prompt: Annotated[Prompts, PlainValidator(_prompts)]
    suffix: Annotated[None, PlainValidator(_none)] = None

    max_tokens: PositiveInteger | None = None
    min_tokens: Annotated[Integer, Field(ge=0)] | None = None

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    logit_bias: Biases | None = None
    n: Choices | None = None
    best_of: Integer | None = None

    stop: StopStrings | None = None
    stop_token_ids: Annotated[Entries[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    stop_regex: Annotated[StopStrings, AfterValidator(_stop_patterns)] | None = None
    ignore_eos: Flag = False
    no_stop_trim: Flag = False

    stream: Flag = False
    stream_options: CompletionStreamOptions | None = None
    echo: Flag = False
    return_token_ids: Flag = False
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None

    ebnf: Pattern | None = None
    regex: Pattern | None = None
    json_schema: Annotated[dict[str, Any], BeforeValidator(_decoded)] | None = None
    structural_tag: Annotated[StructuralTagFormat, BeforeValidator(_decoded)] | None = None
    response_format: ResponseFormat | None = None

    logprobs: TopLogprobs | None = None
    return_logprob: bool | None = None
    logprob_start_len: Annotated[Integer, Field(ge=-1)] | None = None
    top_logprobs_num: TopLogprobs | None = None
    token_ids_logprob: Annotated[Entries[TokenId], Field(max_length=MAX_ASKED_TOKENS)] | None = None
    return_text_in_logprobs: Flag = False

    custom_params: Annotated[dict[str, Any], AfterValidator(_custom_params)] | None = None
    custom_logit_processor: Annotated[str, AfterValidator(_logit_processor)] | None = None
    lora_path: str | None = None
    priority: Integer | None = None
    return_hidden_states: Annotated[
        Literal["all", "last"] | None, PlainValidator(_hidden_states)
    ] = None
    return_routed_experts: Flag = False
    rid: Annotated[str, AfterValidator(_label)] | None = None

    @model_validator(mode="after")
    def _choices_are_few(self) -> CompletionRequest:
        if len(self.prompt) * (self.n or 1) > MAX_TOTAL_CHOICES:
            raise bad_value(
                f"times the number of prompts must be at most {MAX_TOTAL_CHOICES}", field="n"
            )
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise bad_parameter("must be absent or equal to `n`", field="best_of")
        return self

    @model_validator(mode="after")
    def _minimum_is_within_maximum(self) -> CompletionRequest:
        if (self.min_tokens or 0) > self.token_limit:
            raise bad_value("must be at most `max_tokens`", field="min_tokens")
        return self

    @model_validator(mode="after")
    def _one_constraint(self) -> CompletionRequest:
        if len(self.constraints) > 1:
            first, second, *_ = self.constraints
            raise bad_value(f"cannot be combined with `{first}`", field=second)
        return self

    @model_validator(mode="after")
    def _log_probabilities_begin_in_the_prompt(self) -> CompletionRequest:
        if (self.logprob_start_len or 0) > min(map(len, self.prompt)):
            raise bad_value("must not be beyond the prompt", field="logprob_start_len")
        return self

    @property
    def token_limit(self) -> int:
        """`max_tokens`, or its documented default."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def constraints(self) -> tuple[str, ...]:
        """Names of the fields that constrain the answer."""
        named = ("ebnf", "regex", "json_schema", "structural_tag")
        formed = self.response_format is None or isinstance(self.response_format, TextFormat)
        return (
            *(name for name in named if getattr(self, name) is not None),
            *(() if formed else ("response_format",)),
        )

    @property
    def native_logprobs(self) -> bool:
        """Log probabilities are wanted in the engine's own shape."""
        if self.return_logprob is not None:
            return self.return_logprob
        return bool(
            self.top_logprobs_num
            or self.token_ids_logprob
            or self.return_text_in_logprobs
            or (self.logprob_start_len is not None and self.logprob_start_len >= 0)
        )

    @property
    def native_start(self) -> int | None:
        """First prompt position of the native log probabilities; None for none."""
        start = self.logprob_start_len
        return start if self.native_logprobs and start is not None and start >= 0 else None

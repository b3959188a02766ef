"""How tokens are chosen and what the output must look like, in neutral terms.

Nothing here knows a dialect or an engine. Ranges are enforced where a request enters (the dialect);
these values are already valid.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec


class StopConditions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ends a choice besides the model's own end of turn.

    Attributes:
        strings: Stop strings. They act on the answer text only, never on reasoning or tool calls,
            and are not part of the text.
        patterns: The same as regular expressions that `schemas.stop_pattern` understands.
        token_ids: Token ids that end the choice.
        ignore_eos: Do not stop at the model's end-of-turn token.
        include_in_text: Keep the stop string in the text.
    """

    strings: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_in_text: bool = False


class OutputLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many tokens may be generated, reasoning included.

    The prompt's length is known only to the worker, so the rule travels and not its result.

    Attributes:
        max_tokens: The limit to use when prompt and limit fit the context window together.
        fallback_tokens: When they do not fit, the limit becomes the smaller of this and what is
            left of the window. None: the request fails with `context_length_exceeded`.
        headroom: Room for reasoning on top of `max_tokens`, as far as the window has it.
        min_tokens: Stop conditions are suppressed before this many tokens.
        by_default: The client set none, and this is the model's own; few answers come near it.
    """

    max_tokens: int
    fallback_tokens: int | None = None
    headroom: int = 0
    min_tokens: int = 0
    by_default: bool = False


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema"):
    """The answer is JSON that obeys `schema` (references already inlined)."""

    schema: dict[str, Any]


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, tag="json_object"):
    """The answer is any JSON object."""


class Regex(msgspec.Struct, frozen=True, kw_only=True, tag="regex"):
    """The whole answer matches `pattern`."""

    pattern: str


class Ebnf(msgspec.Struct, frozen=True, kw_only=True, tag="ebnf"):
    """The whole answer is derived from `grammar` (XGrammar's EBNF)."""

    grammar: str


class StructuralTag(msgspec.Struct, frozen=True, kw_only=True, tag="structural_tag"):
    """Parts of the answer are constrained once their opening tag has been generated."""

    spec: dict[str, Any]


Constraint: TypeAlias = JsonSchema | JsonObject | Regex | Ebnf | StructuralTag


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is handed to the engine as it is, for callers who know it.

    Attributes:
        label: The caller's own name of the request, as a part of its id inside the engine.
        adapter: Name of a LoRA adapter that the worker has loaded.
        priority: Rank among the requests that wait inside the engine.
        logit_processor: Serialised code that the engine runs for every token.
        custom_params: Data for that code.
        hidden_states: Report the last layer's state of every generated token, or of the last.
        routed_experts: Report which experts each token went to.
    """

    label: str = ""
    adapter: str | None = None
    priority: int | None = None
    logit_processor: str | None = None
    custom_params: dict[str, Any] = {}
    hidden_states: Literal["all", "last"] | None = None
    routed_experts: bool = False


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one Job. None means: the model's own default.

    Attributes:
        n: Number of choices per prompt.
        constraint_param: Where the request has the constraint, for errors about it.
        seed: The `i`-th choice of a prompt samples with `seed + i`, so that choices differ and
            repeat.
        logit_bias: Pairs of (token id, bias).
        logprobs: Report the log probability of each answer token.
        top_logprobs: How many alternatives to report with each, 0 to 20.
        logprob_token_ids: Ids whose log probability to report with each, likely or not.
        prompt_logprobs_from: First position of a token prompt whose log probabilities are reported
            too; None for none.
        report_token_ids: Report the sampled ids in the reply.
        spaces_between_special_tokens: How the text of neighbouring special tokens is joined.
        engine: Options that only some engines have.
    """

    limit: OutputLimit
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: StopConditions = StopConditions()
    constraint: Constraint | None = None
    constraint_param: str | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs_from: int | None = None
    report_token_ids: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    engine: EngineOptions = EngineOptions()

"""Random Jobs and replies: everything the contract allows, and nothing it does not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Counted,
    Delta,
    Failed,
    Finished,
    FinishReason,
    InternalsDelta,
    Interrupted,
    PromptDelta,
    PromptLogprob,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    TokenLogprob,
    TokensDelta,
    ToolCallStarted,
    TopLogprob,
    Usage,
)
from schemas.errors import ErrorInfo, ErrorKind
from schemas.job import ChatPrompt, ChoicePrefix, Continuation, Job, Reasoning, TokenPrompt
from schemas.message import ImagePart, Message, TextPart, ToolCall, ToolChoice, ToolSpec
from schemas.model_card import ModelCard, WorkerInfo
from schemas.sampling import (
    Ebnf,
    EngineOptions,
    JsonObject,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StopConditions,
    StructuralTag,
)

# Lone surrogates are no text; whatever enters the service has been refused or replaced by then.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text("abcdefghijklmnop_-", min_size=1, max_size=8)
counts = st.integers(0, 1 << 31)
token_ids = st.integers(0, 300_000)
times = st.floats(0, 4e9, allow_nan=False)
probabilities = st.floats(-100, 0)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(texts, json_values, max_size=3)


def tuples_of(values: st.SearchStrategy[Any], max_size: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=max_size).map(tuple)


# --- Deltas and replies ---

usages = st.builds(Usage, counts, counts, counts, counts)
error_infos = st.builds(
    ErrorInfo,
    code=names,
    kind=st.sampled_from(ErrorKind),
    status=st.integers(400, 599),
    message=texts,
    param=st.none() | texts,
    retryable=st.none() | st.booleans(),
    retry_after_s=st.none() | st.integers(0, 3600),
    headers=tuples_of(st.tuples(names, texts), 2),
)
top_logprobs = st.builds(TopLogprob, token_ids, texts, st.binary(max_size=4), probabilities)
logprobs = st.builds(
    TokenLogprob,
    *(token_ids, texts, st.binary(max_size=4), probabilities),
    tuples_of(top_logprobs, 2),
    tuples_of(top_logprobs, 2),
)
prompt_logprobs = st.builds(
    PromptLogprob,
    *(token_ids, texts, st.binary(max_size=4), st.none() | probabilities),
    tuples_of(top_logprobs, 2),
    tuples_of(top_logprobs, 2),
)
finish_reasons = st.sampled_from(FinishReason)
hidden_states = st.none() | st.lists(st.lists(probabilities, max_size=2), max_size=2)
stops = st.none() | texts | token_ids


@st.composite
def choices(draw: st.DrawFn, choice: int) -> list[Delta]:
    """What one choice says, up to and with its end."""
    prompt = st.builds(PromptDelta, st.just(choice), texts, tuples_of(prompt_logprobs, 2))
    said: list[Delta] = [*draw(st.lists(prompt, max_size=2))]
    call, in_call = -1, False
    sorts = ["text", "reasoning", "tool", "more", "ids", "internals"]
    for sort in draw(st.lists(st.sampled_from(sorts), max_size=6)):
        if sort == "ids":
            said.append(TokensDelta(choice, draw(tuples_of(token_ids))))
            continue
        if sort == "internals":
            said.append(InternalsDelta(choice, draw(hidden_states), draw(st.none() | names)))
            continue
        if sort == "text":
            said.append(TextDelta(choice, draw(texts), draw(tuples_of(logprobs, 2))))
        elif sort == "reasoning":
            said.append(ReasoningDelta(choice, draw(texts)))
        elif sort == "tool":
            call += 1
            said.append(ToolCallStarted(choice, call, draw(names)))
        elif in_call:
            said.append(ArgumentsDelta(choice, call, draw(texts)))
        in_call = (in_call and sort == "more") or sort == "tool"
    said.append(Finished(choice, draw(finish_reasons), draw(stops)))
    return said


@st.composite
def interleavings(draw: st.DrawFn, sequences: list[list[Delta]]) -> list[Delta]:
    """The sequences' items in any order that keeps each sequence's own."""
    turns = [number for number, items in enumerate(sequences) for _ in items]
    sources = [iter(items) for items in sequences]
    return [next(sources[number]) for number in draw(st.permutations(turns))]


@st.composite
def completed_replies(draw: st.DrawFn, n: int) -> list[Delta]:
    """The Deltas of an attempt that succeeds."""
    worker, input_tokens = draw(names), draw(counts)
    said = draw(interleavings([draw(choices(choice)) for choice in range(n)]))
    return [
        Accepted(worker, input_tokens),
        Started(worker, input_tokens, draw(counts)),
        *said,
        Completed(draw(usages)),
    ]


@st.composite
def attempts(draw: st.DrawFn, n: int) -> list[Delta]:
    """The Deltas of any attempt: one that succeeds, or one that ends early at some point."""
    whole = draw(completed_replies(n))
    if draw(st.booleans()):
        return whole
    end: Delta = draw(
        st.builds(Failed, error_infos, usages) | st.builds(Interrupted, st.just("redelivered"))
    )
    return [*whole[: draw(st.integers(0, len(whole) - 1))], end]


choice_counts = st.integers(1, 3)

counted = st.builds(Counted, names, st.none() | counts)

any_deltas = choice_counts.flatmap(attempts).flatmap(st.sampled_from) | counted

messages = st.builds(
    ReplyMessage,
    names,
    st.integers(1, 9),
    counts,
    tuples_of(any_deltas),
    tuples_of(st.tuples(st.integers(0, 127), tuples_of(token_ids)), 2),
)

# --- Jobs ---

parts = st.builds(TextPart, text=texts) | st.builds(
    ImagePart, media_type=names, data=st.binary(max_size=9)
)
conversations = tuples_of(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant", "tool"]),
        parts=tuples_of(parts),
        reasoning=st.none() | texts,
        tool_calls=tuples_of(st.builds(ToolCall, id=names, name=names, arguments=texts), 2),
        tool_call_id=st.none() | names,
        name=st.none() | names,
    )
)
tools = st.builds(
    ToolSpec,
    name=names,
    description=st.none() | texts,
    parameters=st.none() | json_objects,
    strict=st.booleans(),
)
reasonings = st.builds(
    Reasoning, effort=st.sampled_from([None, "none", "low", "max"]), visible=st.booleans()
)
prompts = st.builds(
    TokenPrompt, prompts=tuples_of(tuples_of(token_ids, 9), 3), echo=st.booleans()
) | st.builds(
    ChatPrompt,
    messages=conversations,
    tools=tuples_of(tools, 2),
    tool_choice=st.builds(
        ToolChoice, mode=st.sampled_from(["auto", "named"]), name=st.none() | names
    ),
    reasoning=reasonings,
    template_options=json_objects,
)
constraints = (
    st.builds(JsonSchema, schema=json_objects)
    | st.just(JsonObject())
    | st.builds(Regex, pattern=texts)
    | st.builds(Ebnf, grammar=texts)
    | st.builds(StructuralTag, spec=json_objects)
)
optional_floats = st.none() | st.floats(-2, 2)
samplings = st.builds(
    SamplingParams,
    limit=st.builds(OutputLimit, max_tokens=counts, fallback_tokens=st.none() | counts),
    n=st.integers(1, 128),
    temperature=optional_floats,
    top_p=optional_floats,
    top_k=st.none() | counts,
    frequency_penalty=optional_floats,
    seed=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    logit_bias=tuples_of(st.tuples(token_ids, st.floats(-100, 100))),
    stop=st.builds(
        StopConditions,
        strings=tuples_of(texts),
        patterns=tuples_of(texts),
        token_ids=tuples_of(token_ids),
    ),
    constraint=st.none() | constraints,
    logprobs=st.booleans(),
    logprob_token_ids=tuples_of(token_ids),
    prompt_logprobs_from=st.none() | st.integers(0, 9),
    engine=st.builds(
        EngineOptions,
        label=names,
        adapter=st.none() | names,
        priority=st.none() | st.integers(-9, 9),
        custom_params=json_objects,
        hidden_states=st.sampled_from([None, "all", "last"]),
    ),
)
prefixes = st.builds(
    ChoicePrefix,
    token_ids=tuples_of(token_ids, 5),
    units=counts,
    prompt_parts=st.integers(0, 9),
    finished=st.booleans(),
)
jobs = st.builds(
    Job,
    job_id=names,
    attempt=st.integers(1, 9),
    request_id=names,
    model=names,
    job_class=st.sampled_from(["interactive", "batch", "count"]),
    prompt=prompts,
    sampling=samplings,
    created_at=times,
    deadline=times,
    queue_deadline=times,
    continuation=st.none() | st.builds(Continuation, choices=tuples_of(prefixes, 5)),
    suspect=st.booleans(),
)
workers = st.builds(
    WorkerInfo,
    worker_id=names,
    card=st.builds(ModelCard, id=names, context_length=counts, aliases=tuples_of(names)),
    engine=names,
    slots=counts,
    running=counts,
    draining=st.booleans(),
    sent_at=times,
)

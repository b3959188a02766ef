"""The requests of the load: every dialect, and everything that is hard to continue.

A catalogue for each engine. The scripted one is told in markers what to say, a word every 50 ms;
the real one is steered by constraints, since its model's weights are random. Both are long enough
to be hit in the middle.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import orjson

from tests import tiny_model as tiny
from tests.chaos.transcript import Transcript
from tests.fixtures.requests import path_of

Check = Callable[[Transcript], bool]

THINK_END = tiny.VOCAB_SIZE - len(tiny.MARKERS) + tiny.MARKERS.index("</think>")
"""Id of the tiny model's token that ends reasoning."""

_WORDS = 24
_BULK = 120_000
"""So many numbers make a request that travels by reference."""

_SEEDED = ("chat", "completions")

_NO_CHARACTER = re.compile("\ufffd{2,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        exact: Asked twice it is answered alike: greedy, or with a seed.
        limit: Of its output tokens, over all choices; None where the answer ends by itself.
        holds: Whether an answer that ended well obeys the request's constraint.
    """

    name: str
    dialect: str
    body: dict[str, Any]
    stream: bool
    exact: bool = True
    limit: int | None = None
    holds: Check = lambda _: True

    @property
    def flows(self) -> bool:
        """It is streamed as it is generated; Responses tell a schema's answer in one piece."""
        return self.stream and not ("text" in self.body and self.dialect == "responses")

    @property
    def path(self) -> str:
        return path_of(self.dialect)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One row of a catalogue."""

    name: str
    dialect: str
    fields: dict[str, Any]
    holds: Check = lambda _: True
    choices: int = 1


def catalogue(engine: str, *, model: str, count: int, seed: int) -> list[Ask]:
    """`count` requests, all kinds about equally often, half of them streams."""
    rng = random.Random(seed)
    make = _scripted if engine == "scripted" else _sglang
    asks: list[Ask] = []
    while len(asks) < count:
        for kind in make(len(asks), rng):
            number = len(asks)
            stream = rng.random() < 0.75
            fields = {"model": model, "stream": stream, **kind.fields}
            if stream and kind.dialect in ("chat", "completions"):
                fields["stream_options"] = {"include_usage": True}
            ask = Ask(
                name=f"{kind.dialect}/{kind.name}#{number}",
                dialect=kind.dialect,
                body=fields,
                stream=stream,
                limit=None if engine == "scripted" else _limit(fields) * kind.choices,
                holds=kind.holds,
            )
            asks.append(ask)
    return asks[:count]


def sampled(asks: list[Ask]) -> list[Ask]:
    """The same at temperature 1; every other one with a seed where it can be, so repeatable."""
    changed = []
    for number, ask in enumerate(asks):
        exact = number % 2 == 0 and ask.dialect in _SEEDED
        seed = {"seed": number} if exact else {}
        body = {**ask.body, "temperature": 1.0, **seed}
        changed.append(replace(ask, exact=exact, body=body))
    return changed


def long_asks(engine: str, *, model: str) -> list[Ask]:
    """Streams that do not end by themselves for minutes."""
    fields: dict[str, Any] = {"model": model, "stream": True}
    if engine == "scripted":
        fields["messages"] = _user("[[k=9000 gap=20]]")
    else:
        fields |= {"messages": _user("Go on."), "max_tokens": 3500, "ignore_eos": True}
    return [Ask(name="chat/long#0", dialect="chat", body=fields, stream=True)]


def poison_asks(*, model: str) -> list[Ask]:
    """Requests that end their worker whenever it runs them: at once, or after some tokens."""
    asks: list[Ask] = []
    for dialect, field in (("chat", "messages"), ("messages", "messages"), ("responses", "input")):
        for at in (0, 5):
            for stream in (True, False):
                said = _said(field, f"[[k=40 gap=20]][[crash:{at}]]")
                room = {"max_tokens": 1000} if dialect == "messages" else {}
                asks.append(
                    Ask(
                        name=f"{dialect}/poison-{at}#{len(asks)}",
                        dialect=dialect,
                        body={"model": model, "stream": stream, field: said, **room},
                        stream=stream,
                    )
                )
    return asks


def _limit(fields: dict[str, Any]) -> int:
    names = ("max_tokens", "max_output_tokens")
    return int(next(fields[name] for name in names if name in fields))


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _item(text: str) -> list[dict[str, Any]]:
    return [{"type": "message", **_user(text)[0]}]


def _said(field: str, text: str) -> list[dict[str, Any]]:
    return _item(text) if field == "input" else _user(text)


def _tool(dialect: str, name: str, form: dict[str, Any]) -> dict[str, Any]:
    match dialect:
        case "chat":
            return {"type": "function", "function": {"name": name, "parameters": form}}
        case "messages":
            return {"name": name, "input_schema": form}
        case _:
            return {"type": "function", "name": name, "parameters": form}


def _forced(dialect: str, name: str) -> Any:
    match dialect:
        case "chat":
            return {"type": "function", "function": {"name": name}}
        case "messages":
            return {"type": "tool", "name": name}
        case _:
            return {"type": "function", "name": name}


def _schema_format(dialect: str, schema: dict[str, Any]) -> dict[str, Any]:
    named = {"name": "answer", "strict": True, "schema": schema}
    if dialect == "chat":
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"text": {"format": {"type": "json_schema", **named}}}


def _as_constrained(text: str) -> str:
    """What the grammar took for one character, as one.

    It lets bytes pass that have the form of a character and encode none, such as a surrogate. A
    model that was never trained samples them now and then, and they are decoded byte by byte.
    """
    return _NO_CHARACTER.sub("\ufffd", text)


def _obeys(schema: dict[str, Any]) -> Check:
    validator = jsonschema.Draft202012Validator(schema)
    return lambda answer: validator.is_valid(orjson.loads(_as_constrained(answer.text)))


def _matches(pattern: str) -> Check:
    return lambda answer: re.fullmatch(pattern, _as_constrained(answer.text)) is not None


def _calls(schema: dict[str, Any]) -> Check:
    """At least one call, and the arguments of all obey."""
    validator = jsonschema.Draft202012Validator(schema)

    def check(answer: Transcript) -> bool:
        given = [
            orjson.loads(
                _as_constrained(
                    arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
                )
            )
            for _, arguments in answer.calls
        ]
        return bool(given) and all(validator.is_valid(value) for value in given)

    return check


# --- The scripted engine -------------------------------------------------------------------------


def _scripted(number: int, rng: random.Random) -> Iterator[_Kind]:
    words = [f"w{number}-{i}" for i in range(_WORDS + rng.randrange(_WORDS))]
    said = " ".join(words)
    say = f"[[say:{said}]][[slow]]"
    think = f"[[think:{' '.join(words[: _WORDS // 2])} ]]"
    value = {"type": "object", "properties": {"said": {"const": said}}, "required": ["said"]}
    arguments = orjson.dumps({"said": said}).decode()
    form = {"type": "object", "properties": {"said": {"type": "string"}}}
    tool = f"[[tool:note {arguments}]][[slow]]"
    grammar = "root ::= " + orjson.dumps(said).decode()
    stop = f"{words[-6]} {words[-5]}"

    chat = {"messages": _user(say)}
    yield _Kind(name="plain", dialect="chat", fields=chat)
    yield _Kind(name="n2", dialect="chat", fields={**chat, "n": 2})
    bulk = {"role": "system", "content": f"{number} " * _BULK}
    yield _Kind(name="large", dialect="chat", fields={"messages": [bulk, *_user(say)]})
    yield _Kind(
        name="logprobs", dialect="chat", fields={**chat, "logprobs": True, "top_logprobs": 2}
    )
    yield _Kind(name="stop", dialect="chat", fields={**chat, "stop": [stop]})
    yield _Kind(
        name="reasoning",
        dialect="chat",
        fields={"messages": _user(think + say), "reasoning_effort": "high"},
    )
    yield _Kind(
        name="json_schema",
        dialect="chat",
        fields={"messages": _user("[[slow]]"), **_schema_format("chat", value)},
        holds=_obeys(value),
    )
    yield _Kind(
        name="regex",
        dialect="chat",
        fields={"messages": _user("[[slow]]"), "regex": said},
        holds=_matches(said),
    )
    yield _Kind(
        name="ebnf",
        dialect="chat",
        fields={
            "messages": _user("[[slow]]"),
            "response_format": {"type": "grammar", "grammar": grammar},
        },
        holds=_matches(said),
    )
    for dialect, field in (("chat", "messages"), ("responses", "input"), ("messages", "messages")):
        room = {"max_tokens": 10_000} if dialect == "messages" else {}
        offered = {"tools": [_tool(dialect, "note", form)], **room}
        yield _Kind(
            name="tool-auto",
            dialect=dialect,
            fields={field: _said(field, tool), **offered},
            holds=_calls(form),
        )
        yield _Kind(
            name="tool-forced",
            dialect=dialect,
            fields={field: _said(field, tool), **offered, "tool_choice": _forced(dialect, "note")},
            holds=_calls(form),
        )
    yield _Kind(name="plain", dialect="responses", fields={"input": _item(say)})
    yield _Kind(
        name="reasoning",
        dialect="responses",
        fields={"input": _item(think + say), "reasoning": {"effort": "high", "summary": "auto"}},
    )
    yield _Kind(
        name="json_schema",
        dialect="responses",
        fields={"input": _item("[[slow]]"), **_schema_format("responses", value)},
        holds=_obeys(value),
    )
    room = {"max_tokens": 10_000}
    yield _Kind(name="plain", dialect="messages", fields={"messages": _user(say), **room})
    yield _Kind(
        name="stop",
        dialect="messages",
        fields={"messages": _user(say), "stop_sequences": [stop], **room},
    )
    yield _Kind(
        name="reasoning",
        dialect="messages",
        fields={
            "messages": _user(think + say),
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            **room,
        },
    )
    prompt = {"prompt": list(say.encode()), "max_tokens": 1000}
    yield _Kind(name="plain", dialect="completions", fields=prompt)
    yield _Kind(name="n2-stop", dialect="completions", fields={**prompt, "n": 2, "stop": [stop]})
    yield _Kind(name="logprobs", dialect="completions", fields={**prompt, "logprobs": 2})


# --- The real engine -----------------------------------------------------------------------------

_ITEM = {"type": "string", "minLength": 4, "maxLength": 9}
_SCHEMA = {
    "type": "object",
    "properties": {
        "state": {"enum": ["kalt", "fermé", "稼働", "🛑"]},
        "names": {"type": "array", "items": _ITEM, "minItems": 8, "maxItems": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["state", "names", "count"],
    "additionalProperties": False,
}
# Simple ones: the engine refuses what takes long to compile, and this machine is busy.
_PATTERN = r"[a-z ,]{120,180}\."
_GRAMMAR = (
    'root ::= word (", " word){20} "!"\nword ::= [a-z] [a-z] [a-z] rest\nrest ::= [a-z ]{0,9}'
)
_GRAMMAR_PATTERN = r"[a-z]{3}[a-z ]{0,9}(, [a-z]{3}[a-z ]{0,9}){20}!"
_NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def _sglang(number: int, rng: random.Random) -> Iterator[_Kind]:
    text = " ".join(rng.choices(("tell", "me", "about", "kettle", "wizards", "the", "day"), k=9))
    text = f"{text} {number}"
    user = _user(text)
    room = 90 + rng.randrange(60)
    limits = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
    greedy = {name: {limit: room, "temperature": 0} for name, limit in limits.items()}
    long = {name: {limit: 400, "temperature": 0} for name, limit in limits.items()}

    chat = {"messages": user, **greedy["chat"], **_NO_THINKING}
    constrained = {"messages": user, **long["chat"], **_NO_THINKING}
    yield _Kind(name="plain", dialect="chat", fields=chat)
    yield _Kind(name="n2", dialect="chat", fields={**chat, "n": 2}, choices=2)
    yield _Kind(
        name="logprobs", dialect="chat", fields={**chat, "logprobs": True, "top_logprobs": 2}
    )
    yield _Kind(name="penalties", dialect="chat", fields={**chat, "frequency_penalty": 1.0})
    yield _Kind(name="stop", dialect="chat", fields={**chat, "stop": ["a", "e "][: 1 + number % 2]})
    yield _Kind(
        name="json_schema",
        dialect="chat",
        fields={**constrained, **_schema_format("chat", _SCHEMA)},
        holds=_obeys(_SCHEMA),
    )
    yield _Kind(
        name="n2-json_schema",
        dialect="chat",
        fields={**constrained, **_schema_format("chat", _SCHEMA), "n": 2},
        holds=_obeys(_SCHEMA),
        choices=2,
    )
    yield _Kind(
        name="regex",
        dialect="chat",
        fields={**constrained, "regex": _PATTERN},
        holds=_matches(_PATTERN),
    )
    yield _Kind(
        name="ebnf",
        dialect="chat",
        fields={**constrained, "response_format": {"type": "grammar", "grammar": _GRAMMAR}},
        holds=_matches(_GRAMMAR_PATTERN),
    )
    thinking = {"messages": user, "reasoning_effort": "high", "temperature": 0}
    bias = {"logit_bias": {str(THINK_END): 2.5}}
    yield _Kind(name="reasoning", dialect="chat", fields={**thinking, "max_tokens": room, **bias})
    yield _Kind(
        name="reasoning-regex",
        dialect="chat",
        fields={**thinking, "max_tokens": 400, **bias, "regex": _PATTERN},
        holds=_matches(_PATTERN),
    )
    for dialect, field in (("chat", "messages"), ("responses", "input"), ("messages", "messages")):
        offered = {field: _said(field, text), "tools": [_tool(dialect, "note", _SCHEMA)]}
        extra = _NO_THINKING if dialect == "chat" else {}
        yield _Kind(name="tool-auto", dialect=dialect, fields={**offered, **greedy[dialect]})
        yield _Kind(
            name="tool-forced",
            dialect=dialect,
            fields={
                **offered,
                **long[dialect],
                **extra,
                "tool_choice": _forced(dialect, "note"),
            },
            holds=_calls(_SCHEMA),
        )
    yield _Kind(
        name="plain", dialect="responses", fields={"input": _item(text), **greedy["responses"]}
    )
    yield _Kind(
        name="json_schema",
        dialect="responses",
        fields={"input": _item(text), **long["responses"], **_schema_format("responses", _SCHEMA)},
        holds=_obeys(_SCHEMA),
    )
    yield _Kind(
        name="reasoning",
        dialect="responses",
        fields={"input": _item(text), "reasoning": {"effort": "high"}, **greedy["responses"]},
    )
    yield _Kind(name="plain", dialect="messages", fields={"messages": user, **greedy["messages"]})
    yield _Kind(
        name="stop",
        dialect="messages",
        fields={"messages": user, **greedy["messages"], "stop_sequences": ["o"]},
    )
    ids = rng.choices(range(300, tiny.VOCAB_SIZE - 100), k=20)
    prompt = {"prompt": ids, "max_tokens": room, "temperature": 0, "ignore_eos": True}
    yield _Kind(name="plain", dialect="completions", fields=prompt)
    yield _Kind(name="n2", dialect="completions", fields={**prompt, "n": 2}, choices=2)
    yield _Kind(name="logprobs", dialect="completions", fields={**prompt, "logprobs": 2})

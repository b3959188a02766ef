"""What restricts decoding of one Job's output, from everything that the Job asks for.

    forced call, strict tools, answer format ─► one constraint ─► with room for reasoning before it

Reasoning stays free: where the model may think first, the constraint describes the whole output,
thinking and its markers included, and binds only what comes after. So it holds whether the prompt
has opened the reasoning, the model opens it, or the model goes straight to its answer. The same
marker ends reasoning here and in `workers.parsing.reasoning`: the first closing one.

The result is in the words of XGrammar, which the engine's decoding uses.

Source: Chat Completions, "Structured outputs" and "Tools"; XGrammar 0.2.7, structural tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from schemas.errors import (
    InvalidGrammar,
    InvalidJsonSchema,
    RequestError,
    ToolSchemaInvalid,
    UnsupportedValue,
)
from schemas.job import ChatPrompt, Job
from schemas.json_schema import enforceable
from schemas.message import ToolChoice, ToolSpec
from schemas.regex import (
    UnsupportedRegex,
    json_text_of_length,
    parse,
    rows_in_json,
    whole_rows,
)
from schemas.regex_length import rows_of_length
from schemas.sampling import (
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Regex,
    SamplingParams,
    StructuralTag,
)
from workers.parsing.reasoning import ReasoningFormat
from workers.parsing.tools import ToolFormat

_MOST_WHITE_SPACE: Final = 1  # a model that is unsure can go on with line breaks for ever
_MOST_LINE_BREAKS: Final = 3  # after reasoning; they belong to its marker


def effective_constraint(
    job: Job,
    *,
    tool_format: ToolFormat | None,
    reasoning_format: ReasoningFormat | None,
    reasoning_open: bool,
) -> Constraint | None:
    """The constraint for a Job's output as the model writes it; None if it may write anything.

    Args:
        job: The whole Job.
        tool_format: How the model writes calls.
        reasoning_format: How the model marks its reasoning.
        reasoning_open: The prompt ends inside reasoning.

    Raises:
        InvalidGrammar: Decoding cannot enforce the regular expression that was asked for.
        UnsupportedValue: The model cannot be made to call a tool.
    """
    prompt = job.prompt
    if not isinstance(prompt, ChatPrompt):
        return _prepared(job.sampling)
    constraint = _answer(job.sampling, prompt, tool_format)
    if constraint is None or reasoning_format is None or prompt.continue_last:
        return constraint
    turned_off = prompt.reasoning.effort == "none"
    inside = reasoning_open or (reasoning_format.always_open and not turned_off)
    if inside or prompt.reasoning.enabled:
        return _after_reasoning(constraint, reasoning_format, inside=inside)
    return constraint


def calls_allowed(job: Job) -> bool:
    """Whether the model may call tools.

    An answer in a format of its own has no room for calls unless one is forced.
    Source: Chat Completions, "Structured outputs".
    """
    prompt = job.prompt
    if not isinstance(prompt, ChatPrompt) or not prompt.tools:
        return False
    match prompt.tool_choice.mode:
        case "none":
            return False
        case "auto":
            return job.sampling.constraint is None
        case _:
            return True


def refused_constraint(job: Job) -> RequestError:
    """The error for a constraint that does not compile, or takes too long to."""
    prompt = job.prompt
    if isinstance(prompt, ChatPrompt) and calls_allowed(job):
        return ToolSchemaInvalid("The tools' parameters cannot be enforced.", param="tools")
    param = job.sampling.constraint_param
    if isinstance(job.sampling.constraint, JsonSchema | JsonObject):
        return InvalidJsonSchema(
            "The JSON schema cannot be enforced, or takes too long to.", param=param
        )
    return InvalidGrammar(
        "The grammar does not compile, takes too long to, or matches nothing.", param=param
    )


def _answer(
    sampling: SamplingParams, prompt: ChatPrompt, tool_format: ToolFormat | None
) -> Constraint | None:
    """What restricts everything after reasoning."""
    choice, asked = prompt.tool_choice, sampling.constraint
    if not prompt.tools or choice.mode == "none" or (choice.mode == "auto" and asked is not None):
        return _prepared(sampling)
    if tool_format is None:
        if choice.mode == "auto":
            return None
        raise UnsupportedValue("This model cannot be made to call a tool.", param="tool_choice")
    return tool_format.constraint(_enforceable_tools(prompt.tools, choice), choice)


def _enforceable_tools(tools: Sequence[ToolSpec], choice: ToolChoice) -> list[ToolSpec]:
    """The tools with schemas that decoding can enforce.

    Arguments of a tool whose schema cannot be (it is recursive, say) are any object: tools come
    from elsewhere, and one of them must not make the others unusable.
    """
    return [
        msgspec.structs.replace(tool, parameters=_parameters(tool.parameters))
        if tool.strict or choice.mode != "auto"
        else tool
        for tool in tools
    ]


def _parameters(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    try:
        written: dict[str, Any] = in_json(enforceable(schema, param="parameters"))
    except RequestError:
        return {"type": "object"}
    return written


def _prepared(sampling: SamplingParams) -> Constraint | None:
    """The constraint without what compilers would silently ignore."""
    match constraint := sampling.constraint:
        case JsonSchema(schema=schema):
            return JsonSchema(schema=in_json(schema))
        case Regex(pattern=pattern):
            try:
                parse(pattern)
            except UnsupportedRegex as error:
                raise InvalidGrammar(
                    f"The regular expression {error}, which cannot be enforced.",
                    param=sampling.constraint_param,
                ) from None
            return constraint
        case StructuralTag(spec=spec):
            return StructuralTag(
                spec={"type": "structural_tag", "format": _format(spec, sampling.constraint_param)}
            )
        case _:
            return constraint


def in_json(schema: Any) -> Any:
    """An enforceable schema, its strings described as JSON text, where some characters are escaped.

    XGrammar takes a pattern for the text between the quotation marks as it stands there. Of pattern
    and length it enforces one, and lets control characters through in strings of a given length.
    """
    if isinstance(schema, list):
        return [in_json(entry) for entry in schema]
    if not isinstance(schema, Mapping) or "enum" in schema or "const" in schema:
        return schema
    if schema.get("type") == "string":
        return _string_in_json(schema)
    written: dict[str, Any] = {}
    for name, value in schema.items():
        match name:
            case "properties":
                written[name] = {key: in_json(entry) for key, entry in value.items()}
            case "patternProperties":
                written[name] = {
                    rows_in_json(whole_rows(key)): in_json(entry) for key, entry in value.items()
                }
            case _:
                written[name] = in_json(value)
    return written


def _string_in_json(schema: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: schema[name] for name in schema if name not in ("minLength", "maxLength")}
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if "pattern" in schema:
        written["pattern"] = rows_in_json(rows_of_length(schema["pattern"], least, most))
    elif least or most is not None:
        written["pattern"] = json_text_of_length(least, most)
    return written


# --- Reasoning -----------------------------------------------------------------------------------


def _after_reasoning(
    constraint: Constraint, markers: ReasoningFormat, *, inside: bool
) -> StructuralTag:
    """Free text up to the closing marker, then the constraint.

    Args:
        constraint: For the answer.
        markers: Of the model's reasoning.
        inside: The output begins inside reasoning; otherwise the model decides whether to think.
    """
    thinking = _sequence(
        {
            "type": "tag",
            "begin": "" if inside else markers.opening,
            "content": {"type": "any_text"},
            "end": markers.closing,
        },
        {"type": "regex", "pattern": f"[\\r\\n]{{0,{_MOST_LINE_BREAKS}}}"},
    )
    before = thinking if inside else {"type": "optional", "content": thinking}
    return StructuralTag(
        spec={"type": "structural_tag", "format": _sequence(before, _as_format(constraint))}
    )


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _as_format(constraint: Constraint) -> dict[str, Any]:
    """The constraint as a part of a structural tag."""
    match constraint:
        case JsonSchema(schema=schema):
            return _json(schema)
        case JsonObject():
            return _json({"type": "object"})
        case Regex(pattern=pattern):
            return {"type": "regex", "pattern": pattern}
        case Ebnf(grammar=grammar):
            return {"type": "grammar", "grammar": grammar}
        case StructuralTag(spec=spec):
            return _format(spec, None)
        case _:
            assert_never(constraint)


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": schema,
        "max_whitespace_cnt": _MOST_WHITE_SPACE,
    }


def _format(spec: Mapping[str, Any], param: str | None) -> dict[str, Any]:
    """A structural tag's own format, also from the older spelling.

    Raises:
        InvalidGrammar: It has none.
    """
    structures = spec.get("structures")
    if isinstance(spec.get("format"), dict):
        format: dict[str, Any] = spec["format"]
        return format
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise InvalidGrammar("The structural tag must have a `format`.", param=param)
    return {
        "type": "triggered_tags",
        "triggers": spec.get("triggers"),
        "tags": [
            {
                "type": "tag",
                "begin": each.get("begin"),
                "content": _json(each.get("schema") or {}),
                "end": each.get("end"),
            }
            for each in structures
        ],
    }

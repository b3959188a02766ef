"""What the markers in a conversation ask the scripted engine to say.

They are read in the last user text; without any it answers a fixed sentence. Calls and constraints
are obeyed as a model with a perfect grammar would. It must not know how the text is played.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from schemas.errors import RequestError
from schemas.job import ChatPrompt, Job
from schemas.json_schema import enforceable
from schemas.message import ToolSpec
from schemas.sampling import Constraint, Ebnf, JsonObject, JsonSchema, Regex
from workers.engines.base import EngineRequest
from workers.engines.scripted_instances import derived_text, instance, is_open, matching_text
from workers.parsing.json_text import JsonScanner, decoded

DEFAULT_ANSWER: Final = "This is the scripted engine speaking; it has no model behind it."
DEFAULT_REASONING: Final = "The scripted engine pretends to think."

MARKERS: Final = {
    "[[say:TEXT]]": "answers TEXT, also where an open JSON object is asked for",
    "[[tool:NAME {json}]]": "calls the tool, if it is offered and has not answered yet",
    "[[think:TEXT]]": "reasoning text first, when reasoning is on",
    "[[k=64 gap=10 ttft=50]]": "64 tokens, 10 ms apart, the first after 50 ms",
    "[[k=64 gap=10 phase=3]]": "64 tokens, each 3 ms after a multiple of 10 ms",
    "[[slow]]": "pauses between pieces",
    "[[fail:start]] [[fail:N]]": "an error before the first token, or after N tokens",
    "[[hang:N]]": "silence after N tokens",
    "[[lose:N]]": "the engine is lost after N tokens, with all that it runs",
    "[[crash:N]]": "death of the worker process after N tokens",
}

_SAY: Final = re.compile(r"\[\[say:(.*?)\]\]", re.DOTALL)
_THINK: Final = re.compile(r"\[\[think:(.*?)\]\]", re.DOTALL)
_TOOL: Final = re.compile(r"\[\[tool:([\w.-]+)\s*")


class Asked(msgspec.Struct, frozen=True):
    """What to say.

    Attributes:
        marked: The text with the markers.
        said: TEXT of `say`, if there is one.
    """

    marked: str
    said: str | None

    @property
    def thought(self) -> str:
        """Reasoning, where it is on."""
        think = _THINK.search(self.marked)
        return think.group(1) if think else DEFAULT_REASONING


def read(request: EngineRequest) -> Asked:
    """The markers of a conversation, or of a prompt of (byte) token ids."""
    prompt = request.job.prompt
    if isinstance(prompt, ChatPrompt):
        texts = [message.text for message in prompt.messages if message.role == "user"]
        marked = texts[-1] if texts else ""
    else:
        marked = bytes(i for i in request.prompt_ids if i < 256).decode(errors="replace")
    say = _SAY.search(_unquoted(marked))
    return Asked(_unquoted(marked), say.group(1) if say else None)


def answer(job: Job, said: str | None) -> str:
    """The answer with its calls, as the model would write it."""
    if isinstance(job.prompt, ChatPrompt) and (
        calls := _calls(job.prompt, job.sampling.constraint)
    ):
        return "\n".join([said, *calls] if said else calls)
    return _constrained(job.sampling.constraint, said)


def _constrained(constraint: Constraint | None, said: str | None) -> str:
    text = DEFAULT_ANSWER if said is None else said
    match constraint:
        case JsonObject():
            return "{}" if said is None else said
        case JsonSchema(schema=schema):
            return said if said is not None and is_open(schema) else _json(instance(schema))
        case Regex(pattern=pattern):
            if said is not None and re.fullmatch(pattern, said):
                return said
            return matching_text(pattern) or text
        case Ebnf(grammar=grammar):
            return derived_text(grammar) or text
        case _:
            return text


def _calls(prompt: ChatPrompt, constraint: Constraint | None) -> list[str]:
    """The calls to make now, each in the format that this engine's template teaches."""
    choice = prompt.tool_choice
    if choice.mode == "none" or not prompt.tools:
        return []
    offered = {tool.name: tool for tool in prompt.tools}
    if choice.mode == "named":
        offered = {name: tool for name, tool in offered.items() if name == choice.name}
    forced = choice.mode != "auto"
    asked = [] if constraint is not None and not forced else _asked_calls(prompt)
    calls = [_call(name, arguments) for name, arguments in asked if name in offered]
    if not calls and forced:
        tool = next(iter(offered.values()))
        calls = [_call(tool.name, _json(instance(_parameters(tool))))]
    return calls if choice.parallel else calls[:1]


def _parameters(tool: ToolSpec) -> dict[str, Any]:
    """A tool's schema as decoding enforces it; one that cannot be enforced lets any object pass."""
    try:
        return enforceable(tool.parameters or {}, param="parameters")
    except RequestError:
        return {}


def _asked_calls(prompt: ChatPrompt) -> list[tuple[str, str | None]]:
    """Names and argument texts of the markers that no tool result follows."""
    last = max(
        (at for at, message in enumerate(prompt.messages) if message.role == "user"), default=-1
    )
    if last < 0 or any(message.role == "tool" for message in prompt.messages[last:]):
        return []
    marked = prompt.messages[last].text
    return _tool_markers(marked) or _tool_markers(_unquoted(marked))


def _tool_markers(marked: str) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for marker in _TOOL.finditer(marked):
        if marked.startswith("]]", marker.end()):
            found.append((marker.group(1), None))
            continue
        rest = marked[marker.end() :]
        end = JsonScanner().feed(rest)
        if decoded(rest[:end]) is not None and rest[end:].lstrip().startswith("]]"):
            found.append((marker.group(1), rest[:end]))
    return found


def _call(name: str, arguments: str | None) -> str:
    given = "" if arguments is None else f', "arguments": {arguments}'
    return f'<tool_call>\n{{"name": {_json(name)}{given}}}\n</tool_call>'


def _unquoted(text: str) -> str:
    # Some clients quote the prompt once more in JSON.
    return text.replace('\\"', '"')


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

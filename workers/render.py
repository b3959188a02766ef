"""Rendering: a conversation to prompt token ids, by the model's own chat template.

The template and the tokenizer are facts of the model, so this happens in the worker. What the
template says is control (turn markers, `<think>`); what the caller says is text, also where it
looks like control. Must not know any dialect or engine.
"""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from schemas.errors import ModelRequestRejected, UnsupportedValue
from schemas.job import ChatPrompt, Effort, Job, Reasoning
from schemas.message import ImageLink, ImagePart, Message, Part, TextPart, ToolCall, ToolSpec
from schemas.model_card import ReasoningSupport
from workers.call_ids import own_ids
from workers.control_text import ControlText, control_texts
from workers.parsing.json_text import decoded
from workers.turns import merge_system, shows, simpler_forms

_REASONING_OPENERS: Final = ("<think>", "<thinking>", "<thought>", "[THINK]", "<seed:think>")
_EFFORT_VARIABLE: Final = re.compile(r"\breasoning_effort\b")
_PROBE: Final = "Is this text shown?"
_SWITCHES: Final = ("enable_thinking", "thinking")
_MAX_DEPTH: Final = 100


class ChatRenderer:
    """Renders and decodes with a Hugging Face tokenizer.

    Args:
        tokenizer: With a chat template.
        show_special: Text of special tokens is part of decoded text.
        vision: The model sees images.
        image_marker: What the template writes in an image's place, if that is known.

    Raises:
        ValueError: The tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        show_special: bool = False,
        vision: bool = False,
        image_marker: str | None = None,
    ) -> None:
        try:
            self.template: str = tokenizer.get_chat_template()
        except ValueError as error:
            raise ValueError(
                "The model has no chat template: give one with the engine argument `chat_template`."
            ) from error
        self._tokenizer = tokenizer
        self._show_special = show_special
        self._split = ControlText(control_texts(tokenizer, self.template))
        self._reserved = _reserved_names(tokenizer)
        self._cut = f"x{secrets.token_hex(12)}x"
        self._vision = vision
        self._image_marker = image_marker
        self._wants_parts = vision and not self._shows_plain_text()

    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        """Apply the chat template. CPU work: milliseconds per 10 KB of text.

        Returns:
            (prompt_len,) token ids, and whether the prompt ends inside an open reasoning part.

        Raises:
            RequestError: The template refuses the conversation.
        """
        assert isinstance(job.prompt, ChatPrompt), "token prompts are not rendered"
        prompt = job.prompt
        conversation = own_ids(_results_of_calls(prompt.messages), self.template)
        images = len(rendered_images(job))
        if images:
            text = self._text_with_images(prompt, conversation, images)
        else:
            text = self._text(prompt, conversation)
        if prompt.continue_last:
            text = self._unfinished(text)
        segments = self._split.segments(text)
        ids: list[int] = []
        for segment in segments:
            # Not verbose: whether it fits is for others to say.
            ids += self._tokenizer.encode(segment, add_special_tokens=False, verbose=False)
        return tuple(ids), segments[-1].rstrip().endswith(_REASONING_OPENERS)

    def _text(self, prompt: ChatPrompt, conversation: Sequence[Message]) -> str:
        """What the template makes of a conversation, with the marks of `_ControlText` in it."""
        messages = self._split.mark([self._as_mapping(message) for message in conversation])
        if prompt.continue_last:
            cut = [{"type": "text", "text": self._cut}] if self._wants_parts else self._cut
            messages[-1]["content"] += cut
        # With `none` the model must not call, and what it does not see it does not call.
        tools = [] if prompt.tool_choice.mode == "none" else [*map(_tool_mapping, prompt.tools)]
        options = self._options(prompt)
        return self._apply(messages, self._split.mark(tools), self._split.mark(options))

    def _text_with_images(
        self, prompt: ChatPrompt, conversation: Sequence[Message], images: int
    ) -> str:
        """The same with a marker for every image; where the marker is unknown, that is believed.

        Markers that a caller wrote have a mark in them and are not counted.
        """
        refused = ModelRequestRejected(
            "The model's chat template has no place for these images.", param="messages"
        )
        # Many templates know images in the user's turns only, not in results.
        for turns in (conversation, _images_after_results(conversation)):
            try:
                text = self._text(prompt, turns)
            except ModelRequestRejected as error:
                refused = error
                continue
            if self._image_marker is None or text.count(self._image_marker) == images:
                return text
        raise refused

    def _shows_plain_text(self) -> bool:
        """Whether the template takes content that is one string; some take lists of parts only."""
        try:
            return _PROBE in self.render_text([{"role": "user", "content": _PROBE}], [], {})
        except Exception:
            return False

    def _as_mapping(self, message: Message) -> dict[str, Any]:
        """A message as templates know it. No content at all is always the empty string."""
        if any(not isinstance(part, TextPart) for part in message.parts):
            if not self._vision:
                raise UnsupportedValue("This model does not take images.", param="messages")
            content: Any = [*map(_part_mapping, message.parts)]
        elif self._wants_parts:
            content = [{"type": "text", "text": message.text}]
        else:
            content = message.text
        fields: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning:
            fields["reasoning_content"] = fields["thinking"] = message.reasoning
        if message.tool_calls:
            fields["tool_calls"] = [_call_mapping(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            fields["name"] = message.name
        return fields

    def decode(
        self,
        token_ids: tuple[int, ...],
        *,
        skip_special_tokens: bool | None = None,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of ids, as the engine would stream it; see `Tokenizer`."""
        if skip_special_tokens is None:
            skip_special_tokens = not self._show_special
        text: str = self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        return text

    def _unfinished(self, text: str) -> str:
        """What the template put before the end of the last message, that message included."""
        before, cut, _ = text.rpartition(self._cut)
        if not cut:
            raise UnsupportedValue(
                "This model's chat template cannot continue a turn of the assistant.",
                param="messages",
            )
        return before

    def _options(self, prompt: ChatPrompt) -> dict[str, Any]:
        """Template variables: the caller's, then what the Job says about reasoning."""
        options = {
            name: value
            for name, value in prompt.template_options.items()
            if name not in self._reserved
        }
        return {**options, **_reasoning_variables(prompt.reasoning)}

    def _apply(
        self, messages: list[dict[str, Any]], tools: list[Any], options: dict[str, Any]
    ) -> str:
        """What the template says; of a simpler form of the conversation if it refuses this one.

        Some templates leave a second system message out without a word.
        """
        text, taken = self._accepted(messages, tools, options)
        later = [message for message in taken[1:] if message["role"] == "system"]
        if shows(text, later):
            return text
        try:
            text_of_merged = self.render_text(merge_system(taken), tools, options)
        except Exception:
            return text
        return text_of_merged if shows(text_of_merged, later) else text

    def _accepted(
        self, messages: list[dict[str, Any]], tools: list[Any], options: dict[str, Any]
    ) -> tuple[str, list[dict[str, Any]]]:
        """What the template says, and of which form of the conversation.

        Raises:
            ModelRequestRejected: It refuses them all.
        """
        refusals = []
        for form in simpler_forms(messages):
            try:
                return self.render_text(form, tools, options), form
            except Exception as error:
                refusals.append(error)
        raise _refused(refusals[0]) from refusals[0]

    def render_text(
        self, messages: list[dict[str, Any]], tools: list[Any], options: dict[str, Any]
    ) -> str:
        """The template's text for messages, tools and variables as templates know them."""
        text: str = self._tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            add_generation_prompt=True,
            tokenize=False,
            **options,
        )
        return text


def reasoning_support(renderer: ChatRenderer) -> ReasoningSupport | None:
    """What the chat template says about reasoning; None if it knows none."""
    template = renderer.template
    if _EFFORT_VARIABLE.search(template) and "enable_thinking" not in template:
        return ReasoningSupport(efforts=("low", "medium", "high"), default="medium")

    def probe(**variables: bool) -> str:
        return renderer.render_text([{"role": "user", "content": "x"}], [], variables)

    for switch in _SWITCHES:
        if (on := probe(**{switch: True})) != probe(**{switch: False}):
            default: Effort = "high" if probe() == on else "none"
            return ReasoningSupport(efforts=("none", "high"), default=default)
    if any(opener in template for opener in _REASONING_OPENERS):
        return ReasoningSupport(efforts=("high",), default="high")
    return None


def knows_tools(renderer: ChatRenderer) -> bool:
    """Whether the chat template shows tools to the model."""
    return re.search(r"\btools\b", renderer.template) is not None


def _reserved_names(tokenizer: Any) -> frozenset[str]:
    """Names that a caller's template options must not set."""
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    return frozenset(
        {*parameters, *tokenizer.special_tokens_map, "messages", "raise_exception"}
        | {"strftime_now", "add_generation_prompt", "self"}
    )


def _reasoning_variables(reasoning: Reasoning) -> dict[str, Any]:
    if reasoning.effort is None:
        return {}
    variables: dict[str, Any] = dict.fromkeys(_SWITCHES, reasoning.enabled)
    if reasoning.enabled:
        variables["reasoning_effort"] = reasoning.effort
    return variables


def _results_of_calls(messages: Sequence[Message]) -> list[Message]:
    """The results of a turn's calls in the order of the calls, with the names of their tools.

    Many templates print no ids: the place of a result is then all that links it to its call. Others
    print the name, which clients leave out.
    """
    ordered: list[Message] = []
    for is_result, group in groupby(messages, lambda message: message.role == "tool"):
        run = [*group]
        if is_result and ordered:
            calls = ordered[-1].tool_calls
            rank = {call.id: place for place, call in enumerate(calls)}
            run.sort(key=lambda result: rank.get(result.tool_call_id or "", len(rank)))
            names = {call.id: call.name for call in calls}
            run = [
                msgspec.structs.replace(
                    result, name=result.name or names.get(result.tool_call_id or "")
                )
                for result in run
            ]
        ordered += run
    return ordered


def rendered_images(job: Job) -> tuple[ImagePart, ...]:
    """The images of a conversation, in the order of their places in the prompt."""
    if not isinstance(job.prompt, ChatPrompt):
        return ()
    return tuple(
        part
        for message in _results_of_calls(job.prompt.messages)
        for part in message.parts
        if isinstance(part, ImagePart)
    )


def _part_mapping(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ImagePart():
            return {"type": "image"}
        case ImageLink():
            raise UnsupportedValue("This image was not loaded.", param="messages")


def _images_after_results(messages: Sequence[Message]) -> Sequence[Message]:
    """The conversation with the images of tool results in a user's turn right after them.

    Their order stays the same.
    """
    moved: list[Message] = []
    images: list[Part] = []
    for message in messages:
        if message.role != "tool":
            if images:
                moved.append(Message(role="user", parts=tuple(images)))
                images = []
            moved.append(message)
            continue
        images += [part for part in message.parts if not isinstance(part, TextPart)]
        texts = tuple(part for part in message.parts if isinstance(part, TextPart))
        moved.append(msgspec.structs.replace(message, parts=texts))
    if images:
        moved.append(Message(role="user", parts=tuple(images)))
    return moved


def _call_mapping(call: ToolCall) -> dict[str, Any]:
    # Templates either print the arguments as JSON or walk through them; a mapping serves both.
    arguments = decoded(call.arguments or "{}")
    if not isinstance(arguments, dict) or _nests_deeply(arguments):
        arguments = call.arguments
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _nests_deeply(value: Any) -> bool:
    """Whether whoever walks through it by recursion, as templates do, might not come back."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True


def _tool_mapping(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _refused(error: Exception) -> ModelRequestRejected:
    return ModelRequestRejected(
        "The model's chat template does not accept this conversation.",
        param="messages",
        diagnostic=f"{type(error).__name__}: {error}",
    )

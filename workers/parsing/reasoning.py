"""Splits reasoning from the answer, for formats that mark it with an opening and a closing string.

The law of all parsers holds: any re-chunking of the text gives the same two strings. That is why
text is held back while it could still become a marker, or white space that a marker would trim.

What counts as reasoning:

* Everything from the beginning, where the prompt ends inside reasoning or the format always starts
  so; otherwise what follows an opening marker at the very beginning (white space may precede it).
* It ends at the *first* closing marker. Later ones, and opening markers anywhere but at the
  beginning, are text. Without a closing marker all of it is reasoning.
* A closing marker that closes nothing, because it comes first or right after another, is nothing.
  Models write one where they were told not to think.
* Line breaks after the opening marker, white space before the closing one and line breaks after
  that belong to the markers. All other text is passed on as it is.

A call drafted inside reasoning stays reasoning, word for word. But some models go straight from
reasoning to a call and forget the closing marker; so, where calls may be made, whole calls that
begin a line and after which nothing more comes are the answer. They wait until that is certain.

Source: the marker strings are those SGLang 0.5.23 uses for `--reasoning-parser` of the same name.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import msgspec

from workers.parsing.holdback import partial_marker

_LINE_BREAKS: Final = "\r\n"


class ReasoningFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a family of models marks its reasoning.

    Attributes:
        opening: The marker before reasoning, where the model writes it itself.
        closing: The marker after it.
        always_open: Output starts inside reasoning whatever the prompt ends with, unless the
            template was told to turn reasoning off.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    always_open: bool = False


_THINK: Final = ReasoningFormat()
_THINK_ALWAYS: Final = ReasoningFormat(always_open=True)

# gpt-oss is `workers.parsing.harmony`. Left out, because an opening and a closing string do not
# describe them: beam, cohere_command4, inkling, kimi_k3, muse and response_template (channels or
# several parts), iquest_q1 (depends on template variables), minimax-append-think (does not split).
REASONING_FORMATS: Final[dict[str, ReasoningFormat]] = {
    "apertus2509": ReasoningFormat(opening="<|inner_prefix|>", closing="<|inner_suffix|>"),
    "deepseek-r1": _THINK_ALWAYS,
    "deepseek-v3": _THINK,
    "deepseek-v4": _THINK,
    "deepseek-v41": _THINK,
    "dots": _THINK,
    "gemma4": ReasoningFormat(opening="<|channel>thought\n", closing="<channel|>"),
    "gigachat35": _THINK_ALWAYS,
    "glm45": _THINK,
    "granite_thinking_parser": _THINK,
    "hunyuan": _THINK,
    "interns1": _THINK,
    "k2_horizon": ReasoningFormat(opening="<ifm|think>", closing="</ifm|think>", always_open=True),
    "kimi": ReasoningFormat(opening="◁think▷", closing="◁/think▷"),
    "kimi_k2": _THINK,
    "ling3": _THINK,
    "mimo": _THINK,
    "minimax": _THINK_ALWAYS,
    "minimax-m3": ReasoningFormat(opening="<mm:think>", closing="</mm:think>"),
    "mistral": ReasoningFormat(opening="[THINK]", closing="[/THINK]"),
    "nanbeige": _THINK,
    "nemotron_3": _THINK,
    "poolside_v1": _THINK,
    "qwen3": _THINK,
    "qwen3-thinking": _THINK_ALWAYS,
    "step3": _THINK_ALWAYS,
    "step3p5": _THINK_ALWAYS,
}


# The markers that tell a format from the usual one; the first that a template has wins.
_SIGNS: Final = (
    ("<|channel|>analysis", "gpt-oss"),
    ("<|channel>thought", "gemma4"),
    ("◁think▷", "kimi"),
    ("<mm:think>", "minimax-m3"),
    ("[THINK]", "mistral"),
    ("<ifm|think>", "k2_horizon"),
    ("<|inner_prefix|>", "apertus2509"),
)


def detect_reasoning_format(template: str) -> str:
    """The format that a chat template shows its model, given that it reasons.

    Nearly every open model marks its thinking with `<think>`.
    """
    return next((name for sign, name in _SIGNS if sign in template), "qwen3")


class _State(Enum):
    BEGINNING = auto()  # a marker may still come first
    REASONING = auto()
    UNSURE = auto()  # either reasoning or the answer: only a closing marker or the end can tell
    GAP = auto()  # after the closing marker, before the answer's first character
    CALL = auto()  # a call inside reasoning: a draft, or the end of unclosed reasoning
    ANSWER = auto()


class ReasoningSplitter:
    """Splits one choice's text into (reasoning, answer).

    Args:
        format: The model's markers.
        starts_inside: The prompt ends inside an open reasoning part.
        turned_off: The template was told to turn reasoning off.
        hidden_when_off: For models that are known to think although they were told not to, without
            an opening marker. Text is held back until a closing marker shows that it was
            reasoning, or the end shows that it was the answer. Such answers do not stream.
        call_markers: What begins and ends a run of calls, where calls may be made.
    """

    __slots__ = (
        "_calls",
        "_format",
        "_held",
        "_inside",
        "_leading",
        "_openings",
        "_state",
        "_unsure",
    )

    def __init__(
        self,
        format: ReasoningFormat,
        *,
        starts_inside: bool,
        turned_off: bool = False,
        hidden_when_off: bool = False,
        call_markers: tuple[str, str] | None = None,
    ) -> None:
        self._format = format
        self._calls = call_markers
        self._inside = starts_inside or (format.always_open and not turned_off)
        self._unsure = hidden_when_off
        self._state = _State.BEGINNING
        self._leading = True  # no reasoning has been passed on yet
        self._held = ""
        self._openings = (format.opening, format.closing)

    @property
    def in_answer(self) -> bool:
        """Whether text fed now would be answer text, as far as is known."""
        match self._state:
            case _State.REASONING | _State.CALL:
                return False
            case _State.BEGINNING:
                return not self._inside
            case _:
                return True

    def may_turn(self, text: str) -> bool:
        """Whether `in_answer` may change somewhere within this text, if it is fed now."""
        match self._state:
            case _State.BEGINNING:
                return True
            case _State.REASONING | _State.CALL:
                return self._format.closing in self._held + text
            case _:
                return False

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text.

        Returns:
            Reasoning and answer text that is now certain; the reasoning comes first.
        """
        if self._state is _State.ANSWER:
            return "", text
        text, self._held = self._held + text, ""
        reasoning = ""
        if self._state is _State.BEGINNING:
            text = self._begin(text)
        if self._state in (_State.REASONING, _State.CALL):
            reasoning, text = self._think(text)
        elif self._state is _State.UNSURE:
            reasoning, text = self._wonder(text)
        if self._state is _State.GAP:
            text = self._close(text)
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        """The text has ended: release what is held back."""
        held, self._held = self._held, ""
        if self._state is _State.CALL and self._calls is not None and self._calls[1] in held:
            return "", held
        if self._state is _State.GAP:
            return "", held.lstrip(_LINE_BREAKS)
        if self.in_answer:
            return "", held
        return held.lstrip(_LINE_BREAKS) if self._leading else held, ""

    def _begin(self, text: str) -> str:
        """Leave the beginning once it is certain what it is; returns the text that remains."""
        body = text.lstrip()
        for marker in self._openings:
            if body.startswith(marker):
                closed = marker == self._format.closing
                self._state = _State.GAP if closed else _State.REASONING
                return body[len(marker) :]
            if marker.startswith(body):
                self._held = text
                return ""
        if self._inside:
            self._state = _State.REASONING
        else:
            self._state = _State.UNSURE if self._unsure else _State.ANSWER
        return text

    def _close(self, text: str) -> str:
        """Leave what belongs to the closing marker behind; returns the text that is the answer."""
        closing = self._format.closing
        while (body := text.lstrip()).startswith(closing):
            text = body[len(closing) :]
        if closing.startswith(body):
            self._held = text
            return ""
        self._state = _State.ANSWER
        return text.lstrip(_LINE_BREAKS)

    def _think(self, text: str) -> tuple[str, str]:
        """Split at the closing marker, or hold back what may belong to it or to a call."""
        if self._leading:
            text = text.lstrip(_LINE_BREAKS)
        before, closing, after = text.partition(self._format.closing)
        if closing:
            self._state = _State.GAP
            return before.rstrip(), after
        self._state = _State.REASONING
        start = 0
        while self._calls is not None and (start := text.find(self._calls[0], start)) >= 0:
            if not self._begins_line(text, start):
                start += 1
            elif (end := self._draft_end(text, start)) is not None:
                start = end
            else:
                self._state = _State.CALL
                return self._certain(text, start)
        held = partial_marker(text, self._format.closing)
        if self._calls is not None:
            held = max(held, partial_marker(text, self._calls[0]))
        return self._certain(text, len(text) - held)

    def _begins_line(self, text: str, start: int) -> bool:
        """Whether a call may begin here; in the middle of a line it is only talked about."""
        if text.startswith(("<|", "<｜"), start):  # noqa: RUF001 - a token of its own, never talk
            return True
        # White space before it has been held back, so the character before it is known.
        return text[start - 1] == "\n" if start else self._leading

    def _draft_end(self, text: str, start: int) -> int | None:
        """Where the calls that begin at `start` end; None if nothing else has followed them yet."""
        assert self._calls is not None
        opening, closing = self._calls
        while (end := text.find(closing, start + len(opening))) >= 0:
            end += len(closing)
            after = text[end:].lstrip()
            if after.startswith(opening):
                start = len(text) - len(after)
                continue
            wait = not after or opening.startswith(after) or self._format.closing.startswith(after)
            return None if wait else end
        return None

    def _certain(self, text: str, length: int) -> tuple[str, str]:
        """Pass so much on as reasoning, less white space at its end; hold the rest back."""
        certain = text[:length].rstrip()
        self._held = text[len(certain) :]
        self._leading = self._leading and not certain
        return certain, ""

    def _wonder(self, text: str) -> tuple[str, str]:
        """Hold everything back until a closing marker."""
        before, closing, after = text.partition(self._format.closing)
        if closing:
            self._state = _State.GAP
            return before.strip(), after
        self._held = text
        return "", ""

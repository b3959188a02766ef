"""What the engine of the benchmarks is asked for, and the bytes of its answers. Pure.

    [[k=64 gap=10 ttft=0 phase=3]]   64 tokens, each 3 ms after a multiple of 10 ms
    [[... hold=head]]                no answer at all until it is released: a queue
    [[... hold=token]]               the head of an answer and no token: the reading of a prompt
    [[hang:1]]                       silence after one token
    [[... tag=NAME]]                 what becomes of it is told at /seen?tag=NAME

The markers are those of our own scripted engine, but for `hold` and `tag`. Chunks have the fields
that those of vLLM and SGLang have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

_CHUNK: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"scripted","choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]}\n\n'
)
_USAGE: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"scripted","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d,'
    b'"total_tokens":%d}}\n\n'
)
_WHOLE: Final = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1760000000,"model":"scripted",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"%b"},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":%d,'
    b'"total_tokens":%d}}'
)
_MARKS = re.compile(rb"\[\[((?:\w+=\w+ ?)+)\]\]")
_HANG = re.compile(rb"\[\[hang:(\d+)\]\]")
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_USAGE_ASKED = re.compile(rb'"include_usage"\s*:\s*true')
GRACE_S: Final = 0.0005
"""A timer may be early by half of its grain; what it was set for is due all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request's markers ask for. Times are in seconds.

    Attributes:
        hold: What is withheld until the request is released: "head", "token" or nothing.
        hang: After how many tokens it falls silent.
        tag: The name under which it is told what became of it.
        stream: Whether the answer comes as it is made.
        usage: Whether a stream ends with a chunk of usage.
    """

    tokens: int = 64
    gap_s: float = 0.0
    phase_s: float = 0.0
    ttft_s: float = 0.0
    hold: str = ""
    hang: int | None = None
    tag: str = ""
    stream: bool = True
    usage: bool = False

    @classmethod
    def of(cls, body: bytes) -> Asked:
        """Read a request's body; of several sets of markers the last counts."""
        found = _MARKS.findall(body)
        marks = dict(pair.split("=") for pair in found[-1].decode().split()) if found else {}
        hang = _HANG.search(body)
        return cls(
            tokens=int(marks.get("k", 64)),
            gap_s=int(marks.get("gap", 0)) / 1000,
            phase_s=int(marks.get("phase", 0)) / 1000,
            ttft_s=int(marks.get("ttft", 0)) / 1000,
            hold=marks.get("hold", ""),
            hang=int(hang.group(1)) if hang else None,
            tag=marks.get("tag", ""),
            stream=_STREAM.search(body) is not None,
            usage=_USAGE_ASKED.search(body) is not None,
        )

    def first_due(self, now: float) -> float:
        """When the first token of a paced answer comes: on one of the instants that all share."""
        since = now + self.ttft_s - self.phase_s
        if self.ttft_s:
            line = int((since + GRACE_S) // self.gap_s) + 1
        else:
            line = round(since / self.gap_s) + 1
        return line * self.gap_s + self.phase_s


def token(number: int) -> str:
    """The text of one token."""
    return f"tok{number} "


@cache  # made once: it is not the engine that is measured
def event(number: int) -> bytes:
    """The SSE event of one token."""
    role = b'"role":"assistant",' if number == 0 else b""
    return _CHUNK % (b'{%b"content":"%b"}' % (role, token(number).encode()), b"null")


def ending(asked: Asked) -> tuple[bytes, ...]:
    """The SSE events after the last token."""
    usage = (_USAGE % (asked.tokens, 9 + asked.tokens),) if asked.usage else ()
    return (_CHUNK % (b"{}", b'"stop"'), *usage, b"data: [DONE]\n\n")


def whole(asked: Asked) -> bytes:
    """The body of an answer that is not streamed."""
    text = "".join(map(token, range(asked.tokens))).encode()
    return _WHOLE % (text, asked.tokens, 9 + asked.tokens)

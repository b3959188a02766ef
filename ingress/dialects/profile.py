"""The dialect profiles: where the documented API and the official clients exclude each other.

This table is the whole list. A dialect asks for a choice by its name; nothing else asks which
profile it is. Everywhere else a superset of both is served.

Source: wire reference, "Dialect profiles"; the numbers are its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

ProfileName: TypeAlias = Literal["wafer", "official"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to each question.

    Attributes:
        name: How settings call it.
        untyped_messages: #1 Responses: `{role, content}` without `type` is a message.
        incomplete_event: #2 Responses: a stream cut by the token limit ends with
            `response.incomplete` instead of `response.completed`.
        reasoning_items: #3 Responses: reasoning items and events when the request asks for them.
        unknown_effort_is_off: #4 Responses: `minimal` and unknown efforts turn reasoning off;
            otherwise `minimal` is the lowest tier above none and unknown ones are refused.
        whole_json_schema: #5 Responses: with `json_schema` the text comes in one delta.
        drop_response_images: #6 Responses: `input_image` is left out; otherwise it is passed to
            vision models and refused on others.
        refuse_hosted_tools: #7 Responses: hosted tools are refused; otherwise they are left out and
            named in `x-headrace-ignored`.
        minimal_effort: #8 Chat: `minimal` is the lowest tier above none; otherwise it is refused.
        usage_unasked: #9 Chat: the usage chunk ends every stream.
        enforce_any: #10 Messages: `tool_choice: any` forces a call; otherwise it is `auto`.
        input_includes_cached: #11 Messages: `input_tokens` includes the cached ones.
        usage_at_start: #12 Messages: `message_start` carries the true input figures.
        pings: #13 Messages: a `ping` follows `message_start` and keeps a silent stream alive;
            otherwise there are none, and a comment does the latter.
        name_ignored_sampling: #14 Sampling fields that a model ignores are named in
            `x-headrace-ignored`.
    """

    name: ProfileName
    untyped_messages: bool
    incomplete_event: bool
    reasoning_items: bool
    unknown_effort_is_off: bool
    whole_json_schema: bool
    drop_response_images: bool
    refuse_hosted_tools: bool
    minimal_effort: bool
    usage_unasked: bool
    enforce_any: bool
    input_includes_cached: bool
    usage_at_start: bool
    pings: bool
    name_ignored_sampling: bool


WAFER = Profile(
    name="wafer",
    untyped_messages=False,
    incomplete_event=False,
    reasoning_items=False,
    unknown_effort_is_off=True,
    whole_json_schema=True,
    drop_response_images=True,
    refuse_hosted_tools=True,
    minimal_effort=False,
    usage_unasked=True,
    enforce_any=False,
    input_includes_cached=True,
    usage_at_start=False,
    pings=False,
    name_ignored_sampling=False,
)
"""What the API documents say."""

OFFICIAL = Profile(
    name="official",
    untyped_messages=True,
    incomplete_event=True,
    reasoning_items=True,
    unknown_effort_is_off=False,
    whole_json_schema=False,
    drop_response_images=False,
    refuse_hosted_tools=False,
    minimal_effort=True,
    usage_unasked=False,
    enforce_any=True,
    input_includes_cached=False,
    usage_at_start=True,
    pings=True,
    name_ignored_sampling=True,
)
"""What the official clients expect."""

PROFILES: Mapping[ProfileName, Profile] = {profile.name: profile for profile in (WAFER, OFFICIAL)}

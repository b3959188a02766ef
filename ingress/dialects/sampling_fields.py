"""Sampling fields that several dialects spell alike: their wire types, and their neutral values.

It knows no dialect.

Source: Chat Completions, section 2; Tokenized completions, section 2.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, Tag

from ingress.dialects.validation import STRING_OR_ARRAY, Entries, Integer, bad_shape, bad_value
from schemas.model_card import ModelCard

MAX_CHOICES = 16
MAX_STOP_STRINGS = 64
MAX_TOP_LOGPROBS = 20

_TOKEN_ID_DIGITS = 10
"""Longer ones are beyond any vocabulary."""

_NO_TOP_K_LIMIT = 2**30
"""Above any vocabulary, and within the 32-bit integers engines use."""


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise bad_shape("must be an object")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _TOKEN_ID_DIGITS):
            raise bad_value("must have token ids as keys")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise bad_shape("must have numbers as values")
        if not -100 <= bias <= 100:
            raise bad_value("must have values between -100 and 100")
        biases[int(token)] = float(bias)
    return tuple(biases.items())


def _top_k(value: int) -> int:
    if value < 1 and value != -1:
        raise bad_value("must be at least 1, or -1 for no limit")
    return value


PositiveInteger: TypeAlias = Annotated[Integer, Field(ge=1)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty: TypeAlias = Annotated[float, Field(gt=0, le=2)]
TopP: TypeAlias = Annotated[float, Field(gt=0, le=1)]
MinP: TypeAlias = Annotated[float, Field(ge=0, le=1)]
TopK: TypeAlias = Annotated[Integer, AfterValidator(_top_k)]
Seed: TypeAlias = Annotated[Integer, Field(ge=-(2**63), lt=2**63)]
Choices: TypeAlias = Annotated[Integer, Field(ge=1, le=MAX_CHOICES)]
TopLogprobs: TypeAlias = Annotated[Integer, Field(ge=0, le=MAX_TOP_LOGPROBS)]

Biases: TypeAlias = Annotated[tuple[tuple[int, float], ...], BeforeValidator(_biases)]
"""Pairs of (token id, bias), from an object."""

StopString: TypeAlias = Annotated[str, Field(min_length=1)]
StopStrings: TypeAlias = Annotated[
    Annotated[StopString, Tag("<string>")]
    | Annotated[Entries[StopString], Field(max_length=MAX_STOP_STRINGS), Tag("<array>")],
    STRING_OR_ARRAY,
]


def strings(value: str | list[str] | None) -> tuple[str, ...]:
    """The strings of a field that is one, several or absent."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def top_k_within(top_k: int | None, card: ModelCard) -> int | None:
    """No more than there are tokens: engines hold it in 32 bits."""
    return None if top_k is None else min(top_k, card.vocab_size or _NO_TOP_K_LIMIT)

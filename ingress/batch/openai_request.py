"""The body that asks for an OpenAI batch.

Source: wire reference of the batch APIs, "OpenAI batches".
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from ingress.dialects.validation import Integer, WireModel, bad_shape, bad_value

Endpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]

MAX_PAIRS: Final = 16
MAX_KEY: Final = 64
MAX_VALUE: Final = 512


def _metadata(value: Any) -> Any:
    if value is None:
        return value
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise bad_shape("must be an object whose values are strings")
    if len(value) > MAX_PAIRS:
        raise bad_value(f"must have at most {MAX_PAIRS} pairs")
    if any(len(key) > MAX_KEY or len(text) > MAX_VALUE for key, text in value.items()):
        raise bad_value(
            f"must have keys of at most {MAX_KEY} and values of at most {MAX_VALUE} characters"
        )
    return value


class ExpiresAfter(WireModel):
    """When the output files expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[Integer, Field(ge=3600, le=2_592_000)]


class CreateBatch(WireModel):
    """The whole body."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[str, str] | None, BeforeValidator(_metadata)] = None
    output_expires_after: ExpiresAfter | None = None

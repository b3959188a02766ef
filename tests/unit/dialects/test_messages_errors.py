"""The error envelope of Messages."""

import msgspec
import orjson
import pytest

from ingress.dialects.messages import Messages
from schemas import errors
from schemas.errors import ContextLengthExceeded, ContextOverflow, ErrorInfo, ErrorKind

# The types that the official client knows.
TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.BILLING: "billing_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.OVERLOADED: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
}


def told(error: ErrorInfo) -> str:
    message: str = orjson.loads(Messages().error_body(error, "req_1"))["error"]["message"]
    return message


@pytest.mark.rule("messages.errors")
@pytest.mark.parametrize("kind", list(ErrorKind))
def test_one_envelope_holds_what_each_documented_one_promises(kind: ErrorKind) -> None:
    error = ErrorInfo(code="a_code", kind=kind, status=418, message="A \u2028 sentence.", param="p")
    body = Messages().error_body(error, "req_1")
    assert orjson.loads(body) == {
        "type": "error",
        "error": {
            "type": TYPES[kind],
            "message": "A \u2028 sentence.",
            "code": "a_code",
            "param": "p",
            "request_id": "req_1",
        },
        "request_id": "req_1",
    }
    assert b"\\u2028" in body


@pytest.mark.rule("messages.overload-status")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ModelUnavailable("x"), 529),
        (errors.ModelOverloaded("x"), 529),
        (errors.ServerShuttingDown("x"), 529),
        (errors.ModelNotFound("x"), 404),
        (errors.GenerationTimeout("x"), 504),
        (errors.RequestTooLarge("x"), 413),
    ],
)
def test_overload_has_a_status_of_its_own(error: errors.ServingError, status: int) -> None:
    assert Messages().error_status(error.info()) == status


@pytest.mark.rule("messages.context-length")
@pytest.mark.parametrize(
    ("prompt", "output", "message"),
    [
        (9, 0, "prompt is too long: 9 tokens > 8 maximum"),
        (9, 3, "prompt is too long: 9 tokens > 8 maximum"),
        (
            6,
            3,
            "prompt is too long: 6 tokens > 5 maximum; input length and `max_tokens` exceed "
            "context limit: 6 + 3 > 8, decrease input length or `max_tokens` and try again",
        ),
        (
            6,
            10,
            "prompt is too long: 6 tokens > 0 maximum; input length and `max_tokens` exceed "
            "context limit: 6 + 10 > 8, decrease input length or `max_tokens` and try again",
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_the_words_clients_look_for(
    prompt: int, output: int, message: str
) -> None:
    overflow = ContextOverflow(prompt_tokens=prompt, output_tokens=output, context_length=8)
    assert told(ContextLengthExceeded(overflow).info()) == message


def test_and_where_nobody_knows_by_how_much() -> None:
    assert told(ContextLengthExceeded().info()).startswith("prompt is too long: ")
    other = msgspec.structs.replace(ContextLengthExceeded().info(), code="other")
    assert not told(other).startswith("prompt")

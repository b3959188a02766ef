import orjson
import pytest

from ingress.dialects.chat import Chat
from ingress.dialects.registry import DIALECTS
from schemas.errors import (
    ConcurrencyLimitExceeded,
    GenerationTimeout,
    InvalidApiKey,
    MethodNotAllowed,
    ModelAccessDenied,
    ModelNotFound,
    ModelUnavailable,
    ModelZdrNotSupported,
    RequestTooLarge,
    ServingError,
    UnsupportedMediaType,
    UnsupportedValue,
    WorkerFailed,
)


@pytest.mark.parametrize(
    ("error", "status", "error_type"),
    [
        (UnsupportedValue("no", param="n"), 400, "invalid_request_error"),
        (InvalidApiKey("no"), 401, "authentication_error"),
        (ModelAccessDenied("no"), 403, "permission_error"),
        (ModelNotFound("no"), 404, "not_found_error"),
        (MethodNotAllowed("no"), 405, "invalid_request_error"),
        (RequestTooLarge("no"), 413, "invalid_request_error"),
        (UnsupportedMediaType("no"), 415, "invalid_request_error"),
        (ModelZdrNotSupported("no"), 422, "invalid_request_error"),
        (ConcurrencyLimitExceeded("no"), 429, "rate_limit_error"),
        (WorkerFailed("no"), 502, "api_error"),
        (ModelUnavailable("no"), 503, "overloaded_error"),
        (GenerationTimeout("no"), 504, "timeout_error"),
    ],
)
def test_openai_envelope(error: ServingError, status: int, error_type: str) -> None:
    chat = Chat()
    assert chat.error_status(error.info()) == status
    assert orjson.loads(chat.error_body(error.info(), "req_1")) == {
        "error": {
            "message": "no",
            "type": error_type,
            "param": error.param,
            "code": error.code,
            "request_id": "req_1",
        }
    }


def test_dialects_are_found_by_name() -> None:
    assert DIALECTS["chat"].path == "/v1/chat/completions"
    assert all(name == dialect.name for name, dialect in DIALECTS.items())

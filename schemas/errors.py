"""What can go wrong, classified once: kind, status, code, whose fault, and whether to try again.

Raise a `ServingError` anywhere; it is rendered once, by the dialect that was asked. `message` is
public and never contains a prompt, an output, a key or another program's text; `diagnostic` is for
the log only. Over the broker an error travels as `ErrorInfo`.

This module must not know any dialect's envelope.

Source: the error catalogue of the public API (codes, statuses, retry steering).
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

import msgspec


class ErrorKind(StrEnum):
    """The class of an error, from which each dialect derives its own `type`."""

    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"
    AUTHENTICATION = "authentication"
    BILLING = "billing"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    RATE_LIMIT = "rate_limit"
    INTERNAL = "internal"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"


class ContextOverflow(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a prompt did not fit, in tokens; dialects word it differently.

    Attributes:
        output_tokens: The output limit that had to fit beside the prompt; 0 if the prompt alone is
            too long.
    """

    prompt_tokens: int
    output_tokens: int
    context_length: int


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The wire form of an error.

    Attributes:
        code: Stable machine-readable code, such as `unsupported_value`.
        kind: See `ErrorKind`.
        status: HTTP status before the first byte of an answer (dialects may map 503 to 529).
        message: One or two public sentences.
        param: Path of the offending field, such as `messages[2].content`.
        retryable: Whether the same request may succeed later; None leaves it to the status.
        retry_after_s: Whole seconds for `Retry-After`.
        headers: Further response headers, such as `Allow`.
        overflow: Of `context_length_exceeded` only.
    """

    code: str
    kind: ErrorKind
    status: int
    message: str
    param: str | None = None
    retryable: bool | None = None
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    overflow: ContextOverflow | None = None


class ServingError(Exception):
    """Base of every error that reaches a client.

    Args:
        message: Public text.
        param: Path of the offending field.
        diagnostic: Text for the log; never sent to a client.
        retry_after_s: Whole seconds after which to try again.
        headers: Further response headers.

    Attributes:
        logged: A line of the log tells of it already.
    """

    kind: ClassVar[ErrorKind]
    status: ClassVar[int]
    code: ClassVar[str]
    retryable: ClassVar[bool | None] = None
    default_retry_after_s: ClassVar[int | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        diagnostic: str | None = None,
        retry_after_s: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.diagnostic = diagnostic
        self.logged = False
        self.retry_after_s = (
            retry_after_s if retry_after_s is not None else self.default_retry_after_s
        )
        self.headers = headers

    def info(self) -> ErrorInfo:
        """The wire form, without the diagnostic."""
        return ErrorInfo(
            code=self.code,
            kind=self.kind,
            status=self.status,
            message=self.message,
            param=self.param,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
            headers=self.headers,
        )


class ReportedError(ServingError):
    """An error that arrived as `ErrorInfo` from the other side of the broker."""

    def __init__(self, info: ErrorInfo, *, diagnostic: str | None = None) -> None:
        super().__init__(
            info.message,
            param=info.param,
            diagnostic=diagnostic,
            retry_after_s=info.retry_after_s,
            headers=info.headers,
        )
        self._info = info

    def info(self) -> ErrorInfo:
        return self._info


# --- The caller's errors -------------------------------------------------------------------------


class RequestError(ServingError):
    """The request cannot be served as it is."""

    kind = ErrorKind.INVALID_REQUEST
    status = 400


class InvalidJson(RequestError):
    code = "invalid_json_request"


class SchemaValidationFailed(RequestError):
    code = "schema_validation_failed"


class UnsupportedValue(RequestError):
    code = "unsupported_value"


class UnsupportedParameter(RequestError):
    code = "unsupported_parameter"


class UnsupportedInputItem(RequestError):
    code = "unsupported_input_item"


class InvalidTool(RequestError):
    code = "invalid_tool"


class ToolSchemaInvalid(RequestError):
    code = "tool_schema_invalid"


class ToolChoiceUnknownTool(RequestError):
    code = "tool_choice_unknown_tool"


class JsonSchemaRefsRemote(RequestError):
    code = "json_schema_refs_remote"


class JsonSchemaRefsUnresolvable(RequestError):
    code = "json_schema_refs_unresolvable"


class JsonSchemaRefsRecursive(RequestError):
    code = "json_schema_refs_recursive"


class JsonSchemaRefsTooLarge(RequestError):
    code = "json_schema_refs_too_large"


class InvalidJsonSchema(RequestError):
    code = "invalid_json_schema"


class InvalidGrammar(RequestError):
    code = "invalid_grammar"


class InvalidPrompt(RequestError):
    code = "invalid_prompt"


class ContextLengthExceeded(RequestError):
    """Prompt, or prompt and output limit, exceed the window; None where nobody tells the figures.

    Some clients know this error by the words "maximum context length".
    """

    code = "context_length_exceeded"

    def __init__(
        self, overflow: ContextOverflow | None = None, *, diagnostic: str | None = None
    ) -> None:
        message = "The request exceeds this model's maximum context length."
        if overflow is not None:
            needs = f"{overflow.prompt_tokens} for the prompt"
            if overflow.output_tokens:
                needs += f" and {overflow.output_tokens} for the output"
            message = (
                f"This model's maximum context length is {overflow.context_length} tokens, but the "
                f"request needs {needs}."
            )
        super().__init__(message, diagnostic=diagnostic)
        self.overflow = overflow

    def info(self) -> ErrorInfo:
        return msgspec.structs.replace(super().info(), overflow=self.overflow)


class ModelRequestRejected(RequestError):
    code = "model_request_rejected"


class MissingApiKey(RequestError):
    kind = ErrorKind.AUTHENTICATION
    status = 401
    code = "missing_api_key"


class InvalidApiKey(RequestError):
    kind = ErrorKind.AUTHENTICATION
    status = 401
    code = "invalid_api_key"


class ModelAccessDenied(RequestError):
    kind = ErrorKind.PERMISSION
    status = 403
    code = "model_access_denied"


class AccountDisabled(RequestError):
    kind = ErrorKind.PERMISSION
    status = 403
    code = "account_disabled"


class AccountNotFound(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "account_not_found"


class AccountIdTaken(RequestError):
    """Not 409, which official clients would try again."""

    code = "account_exists"


class KeyNotFound(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "key_not_found"


class KeyNotActive(RequestError):
    code = "key_not_active"


class KeyLimitExceeded(RequestError):
    code = "key_limit_exceeded"


class InsufficientCredits(RequestError):
    kind = ErrorKind.BILLING
    status = 402
    code = "insufficient_credits"
    retryable = False


class ModelNotFound(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "model_not_found"


class FileNotFound(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "file_not_found"


class BatchNotFound(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "batch_not_found"


class InputFileNotFound(RequestError):
    """A batch is to be made of a file that is not there."""

    code = "file_not_found"


class FileIsInUse(RequestError):
    """Not 409, which official clients would try again."""

    code = "file_in_use"


class BatchNotCancellable(RequestError):
    code = "batch_not_cancellable"


class BatchNotEnded(RequestError):
    code = "batch_not_ended"


class BatchLimitExceeded(RequestError):
    """Too many unfinished batches; trying again at once would not help."""

    kind = ErrorKind.RATE_LIMIT
    status = 429
    code = "batch_limit_exceeded"
    retryable = False
    default_retry_after_s = 60


class BatchZdrNotSupported(RequestError):
    status = 422
    code = "batch_zdr_not_supported"


class IdempotencyKeyReused(RequestError):
    """For good: official clients must not try it again, as they would a 409."""

    status = 409
    code = "idempotency_key_reused"
    retryable = False


class IdempotentRequestRunning(RequestError):
    status = 409
    code = "idempotent_request_running"
    retryable = True
    default_retry_after_s = 5


class EndpointNotSupported(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "endpoint_not_supported"


class NotFound(RequestError):
    kind = ErrorKind.NOT_FOUND
    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"


class RequestBodyTimeout(RequestError):
    kind = ErrorKind.TIMEOUT
    status = 408
    code = "request_timeout"
    retryable = True


class RequestTooLarge(RequestError):
    kind = ErrorKind.TOO_LARGE
    status = 413
    code = "request_too_large"


class UnsupportedMediaType(RequestError):
    status = 415
    code = "unsupported_media_type"


class ModelZdrNotSupported(RequestError):
    status = 422
    code = "model_zdr_not_supported"


class ConcurrencyLimitExceeded(RequestError):
    kind = ErrorKind.RATE_LIMIT
    status = 429
    code = "concurrency_limit_exceeded"
    default_retry_after_s = 1


class RateLimitExceeded(RequestError):
    kind = ErrorKind.RATE_LIMIT
    status = 429
    code = "rate_limit_exceeded"
    default_retry_after_s = 1


# --- Our errors ----------------------------------------------------------------------------------


class ServiceError(ServingError):
    """The service could not do what it should."""

    kind = ErrorKind.INTERNAL
    status = 500


class ModelUnavailable(ServiceError):
    """No ready worker serves the model."""

    kind = ErrorKind.OVERLOADED
    status = 503
    code = "model_unavailable"
    default_retry_after_s = 5


class ModelOverloaded(ServiceError):
    """The queue is full, or the wait limit was reached."""

    kind = ErrorKind.OVERLOADED
    status = 503
    code = "model_overloaded"
    default_retry_after_s = 5


class ServerShuttingDown(ServiceError):
    kind = ErrorKind.OVERLOADED
    status = 503
    code = "server_shutting_down"
    default_retry_after_s = 5


class WorkerFailed(ServiceError):
    """A worker was lost and the retries are used up."""

    status = 502
    code = "worker_failed"


class GenerationFailed(ServiceError):
    """The engine failed this request."""

    status = 500
    code = "generation_failed"


class GenerationTimeout(ServiceError):
    kind = ErrorKind.TIMEOUT
    status = 504
    code = "generation_timeout"


class InternalError(ServiceError):
    code = "internal_error"


class ProtocolViolation(ServiceError):
    """The other side of the broker broke the reply grammar or the codec."""

    code = "internal_error"


class ClientClosedRequest(ServiceError):
    """The client went away; exists for the log only."""

    status = 499
    code = "client_closed_request"

"""Every error of the catalogue, in every dialect that has it, through the official clients.

One row is one code. What is told about it is the same everywhere: the class that the client raises,
the status, the code, the request id under both header names, and when to try again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import structlog

from ingress.config import Config
from ingress.limits.limiter import Demand
from ingress.stores.base import StoreUnavailable
from schemas import errors
from schemas.errors import ServingError
from tests.fixtures.requests import ALL, answer_schema, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack
from workers.engines.scripted import ScriptedEngine

ROOT = Path(__file__).parents[2]

OPENAI_CLASSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    402: openai.APIStatusError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    405: openai.APIStatusError,
    413: openai.APIStatusError,
    415: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}
ANTHROPIC_CLASSES = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    402: anthropic.PaymentRequiredError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    405: anthropic.APIStatusError,
    413: anthropic.ContentTooLargeError,
    415: anthropic.APIStatusError,
    422: anthropic.UnprocessableEntityError,
    429: anthropic.RateLimitError,
    500: anthropic.InternalServerError,
    504: anthropic.GatewayTimeoutError,
    529: anthropic.OverloadedError,
}
# Error catalogue, section 2; the exception is 413, which only Messages has a type of its own for.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _account(name: str, **limits: Any) -> dict[str, Any]:
    return {"id": name, "keys": [{"key": f"key-of-the-{name}-one"}], "limits": limits}


CONFIG = Config.model_validate(
    {
        "models": [
            {
                "id": "limited",
                "context_length": 4096,
                "capabilities": {"n": False, "tools": False, "completions": False},
            },
            {
                "id": "unserved",
                "context_length": 4096,
                "capabilities": {"completions": True},
            },
        ],
        "accounts": [
            _account("poor", budget={"cents": 0}),
            _account("slow", tokens_per_minute=1),
            _account("busy", concurrency=1),
        ],
    }
)


def everywhere(**changes: Any) -> dict[str, dict[str, Any]]:
    """The same change in every dialect."""
    return dict.fromkeys(ALL, changes)


NO_KEY = "not sent"


def _shut_down(stack: Stack) -> None:
    stack.services.begin_shutdown()


def _fill(stack: Stack) -> None:
    for _ in range(stack.services.settings.max_concurrent):
        stack.services.admission.admit(MODEL, tokens=1, free_slots=1)


async def _occupy(stack: Stack) -> None:
    (account,) = (account for account in CONFIG.accounts if account.id == "busy")
    demand = Demand(input_tokens=1, output_tokens=1)
    await stack.services.limiter.reserve(account.account("busy"), demand)


async def _nothing(_: Stack) -> None:
    pass


def _break(stack: Stack) -> None:
    async def dispatch(_: Any) -> Any:
        raise RuntimeError("a secret of the code")

    stack.services.dispatcher.dispatch = dispatch  # type: ignore[method-assign]


@dataclass(frozen=True)
class Case:
    """One code.

    Attributes:
        changes: What makes the request a bad one, by dialect.
        text: What it says.
        arrange: Brings the service into the state that the error tells of.
    """

    error: type[ServingError]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=everywhere)
    text: str = "[[say:fine]]"
    headers: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    method: str = "post"
    suffix: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrange: Callable[[Stack], None] = lambda stack: None
    arrange_first: Callable[[Stack], Awaitable[None]] = _nothing
    key: str = "good-key"

    @property
    def code(self) -> str:
        return self.error.code


REMOTE = {"$ref": "https://elsewhere.example/schema"}
MISSING = {"$ref": "#/$defs/absent"}
CIRCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}}}}
BROKEN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}


def tool(dialect: str, schema: Any, name: str = "look", **extra: Any) -> dict[str, Any]:
    """A function tool in the shape of a dialect."""
    if dialect == "messages":
        return {"name": name, "input_schema": schema, **extra}
    function = {"name": name, "parameters": schema}
    if dialect == "responses":
        return {"type": "function", **function, **extra}
    return {"type": "function", "function": function, **extra}


def tools(schema: Any = None, **changes: Any) -> dict[str, dict[str, Any]]:
    """A tool in every dialect that has tools."""
    schema = {"type": "object"} if schema is None else schema
    return {
        name: {"tools": [tool(name, schema)], **changes} for name in ALL if name != "completions"
    }


def only(**changes: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Changes for the dialects that are named."""
    return {name: changes[name] for name in ALL if name in changes}


def huge_schema() -> dict[str, Any]:
    """Few bytes that become very many once the references are inlined."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 16):
        below = {"$ref": f"#/$defs/d{number - 1}"}
        definitions[f"d{number}"] = {"type": "object", "properties": {"a": below, "b": below}}
    return {"$ref": "#/$defs/d15", "$defs": definitions}


CASES = [
    Case(errors.MissingApiKey, key=NO_KEY),
    Case(errors.InvalidApiKey, key="bad-key"),
    Case(errors.InsufficientCredits, key="key-of-the-poor-one"),
    Case(errors.RateLimitExceeded, key="key-of-the-slow-one"),
    Case(errors.ConcurrencyLimitExceeded, key="key-of-the-busy-one", arrange_first=_occupy),
    Case(errors.ModelZdrNotSupported, headers={"Wafer-ZDR": "required"}),
    Case(errors.InvalidJson, content=b'{"model":'),
    Case(errors.SchemaValidationFailed, everywhere(model=5)),
    Case(errors.UnsupportedValue, everywhere(temperature=-1)),
    Case(
        errors.UnsupportedParameter,
        only(
            chat={"chat_template_kwargs": {"tokenize": False}},
            responses={"previous_response_id": "resp_1"},
            messages=tools()["messages"] | {"model": "limited"},
            completions={"suffix": "x"},
        ),
    ),
    Case(
        errors.UnsupportedInputItem,
        only(responses={"input": [{"type": "item_reference", "id": "x"}]}),
    ),
    Case(
        errors.InvalidTool,
        only(
            chat={"tools": [{"type": "file_search"}]},
            responses={"tools": [{"type": "file_search"}]},
            messages={"tools": [{"type": "file_search"}]},
        ),
    ),
    Case(errors.ToolSchemaInvalid, tools({"type": "string"})),
    Case(
        errors.ToolChoiceUnknownTool,
        only(
            chat=tools()["chat"]
            | {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            responses=tools().get("responses", {})
            | {"tool_choice": {"type": "function", "name": "other"}},
            messages=tools().get("messages", {})
            | {"tool_choice": {"type": "tool", "name": "other"}},
        ),
    ),
    Case(errors.JsonSchemaRefsRemote, answer_schema(REMOTE)),
    Case(errors.JsonSchemaRefsUnresolvable, answer_schema(MISSING)),
    Case(errors.JsonSchemaRefsRecursive, answer_schema(CIRCLE)),
    Case(errors.JsonSchemaRefsTooLarge, answer_schema(huge_schema())),
    Case(
        errors.InvalidJsonSchema,
        {name: change for name, change in answer_schema("x").items() if name != "completions"},
    ),
    Case(errors.InvalidPrompt, only(completions={"prompt": "text"})),
    Case(errors.ContextLengthExceeded, text="x" * 5000),
    Case(
        errors.ModelRequestRejected,
        only(
            messages={
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": "iVBORw0KGgo=",
                                },
                            }
                        ],
                    }
                ]
            }
        ),
    ),
    Case(errors.RequestTooLarge, text="x" * 60_000),
    Case(errors.UnsupportedMediaType, headers={"content-type": "text/csv"}, content=b"a,b"),
    Case(errors.ModelNotFound, everywhere(model="nobody")),
    Case(errors.EndpointNotSupported, only(completions={"model": "limited"})),
    Case(errors.NotFound, suffix="/nothing/here"),
    Case(errors.MethodNotAllowed, method="get"),
    Case(errors.ModelUnavailable, everywhere(model="unserved")),
    Case(errors.ModelOverloaded, settings={"max_concurrent": 2}, arrange=_fill),
    Case(errors.ServerShuttingDown, arrange=_shut_down),
    Case(errors.GenerationFailed, text="[[fail:start]]"),
    Case(
        errors.GenerationTimeout,
        text="[[hang:0]]",
        settings={"limits": TimeLimits(first_token_s=0.2, last_words_s=0.05)},
    ),
    Case(errors.InternalError, arrange=_break),
]

SHOWN_ELSEWHERE = {
    errors.InvalidGrammar: "tests/contract/test_engine_sglang.py",
    errors.RequestBodyTimeout: "tests/integration/test_bad_input.py",
    errors.WorkerFailed: "tests/sdk/test_failures.py",
    errors.ClientClosedRequest: "tests/integration/test_logs.py",
    errors.FileNotFound: "tests/sdk/test_files_openai.py",
    errors.FileIsInUse: "tests/sdk/test_files_openai.py",
    errors.BatchNotFound: "tests/sdk/test_batches_openai.py",
    errors.BatchNotCancellable: "tests/sdk/test_batches_openai.py",
    errors.BatchLimitExceeded: "tests/sdk/test_batches_openai.py",
    errors.BatchZdrNotSupported: "tests/sdk/test_batches_openai.py",
    errors.IdempotencyKeyReused: "tests/sdk/test_batches_openai.py",
    errors.IdempotentRequestRunning: "tests/sdk/test_idempotency.py",
    errors.BatchNotEnded: "tests/sdk/test_message_batches_anthropic.py",
    errors.AccountDisabled: "tests/sdk/test_accounts.py",
    errors.ModelAccessDenied: "tests/sdk/test_accounts.py",
    errors.AccountNotFound: "tests/integration/test_admin.py",
    errors.AccountIdTaken: "tests/integration/test_admin.py",
    errors.KeyNotFound: "tests/integration/test_admin.py",
    errors.KeyNotActive: "tests/integration/test_admin.py",
    errors.KeyLimitExceeded: "tests/integration/test_admin.py",
    StoreUnavailable: "tests/integration/test_files.py",
}
"""Codes that need more than one request to a scripted engine, and where they are told."""


@asynccontextmanager
async def stack_for(case: Case) -> AsyncIterator[Stack]:
    engine = ScriptedEngine(served_id=MODEL, context_length=4096)
    async with memory_stack(
        engine, api_keys=("good-key",), config=CONFIG, max_body_bytes=60_000, **case.settings
    ) as stack:
        await case.arrange_first(stack)
        case.arrange(stack)
        yield stack


async def ask(
    case: Case, stack: Stack, dialect: str, *, stream: bool
) -> openai.APIStatusError | anthropic.APIStatusError:
    """What the dialect's own client raises."""
    path = path_of(dialect) + case.suffix
    body = request_body(dialect, case.text, **case.changes[dialect], stream=stream)
    headers = dict(case.headers)
    if case.key == NO_KEY:
        headers |= (
            {"X-Api-Key": anthropic.Omit(), "Authorization": anthropic.Omit()}
            if dialect == "messages"
            else {"Authorization": openai.Omit()}
        )
    sent: dict[str, Any] = {"content": case.content} if case.content is not None else {"body": body}
    if case.method == "get":
        sent = {}
    client: openai.AsyncOpenAI | anthropic.AsyncAnthropic
    if dialect == "messages":
        client = anthropic.AsyncAnthropic(base_url=stack.url, api_key=case.key, max_retries=0)
        make_options = anthropic._base_client.make_request_options
    else:
        client = openai.AsyncOpenAI(base_url=stack.url, api_key=case.key, max_retries=0)
        make_options = openai._base_client.make_request_options
    async with client:
        send = client.get if case.method == "get" else client.post
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
            await send(path, cast_to=object, **sent, options=make_options(extra_headers=headers))
    return raised.value


def check(
    case: Case, dialect: str, raised: openai.APIStatusError | anthropic.APIStatusError
) -> None:
    anthropic_family = dialect == "messages"
    status = case.error.status
    if anthropic_family and status == 503:
        status = 529
    assert raised.status_code == status
    classes = ANTHROPIC_CLASSES if anthropic_family else OPENAI_CLASSES
    assert type(raised) is classes[status]
    response = raised.response
    assert response.headers["content-type"] == "application/json"
    request_id = response.headers["request-id"]
    assert request_id.startswith("req_")
    assert response.headers["x-request-id"] == request_id == raised.request_id
    body = response.json()
    error = body["error"]
    too_large = anthropic_family and status == 413
    assert error["type"] == ("request_too_large" if too_large else TYPES[status])
    assert error["code"] == case.code
    assert error["request_id"] == request_id
    assert "param" in error
    assert error["message"]
    assert "secret" not in response.text
    if anthropic_family:
        assert body["type"] == "error"
        assert body["request_id"] == request_id
        assert set(body) == {"type", "error", "request_id"}
    else:
        assert isinstance(raised, openai.APIStatusError)
        assert raised.code == case.code
        assert raised.param == error["param"]
        assert set(body) == {"error"}
    if status in (429, 503, 529):
        assert 0 < int(response.headers["retry-after"]) <= 120
    else:
        assert "retry-after" not in response.headers
    if status == 405:
        assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
@pytest.mark.rule(
    "errors.codes", "errors.envelopes", "errors.types", "errors.request-id", "errors.retry-after"
)
async def test_code(case: Case) -> None:
    async with stack_for(case) as stack:
        for dialect in case.changes:
            for stream in (False, True):
                # Rendering the traceback of `internal_error` for the terminal takes seconds.
                with structlog.testing.capture_logs():
                    raised = await ask(case, stack, dialect, stream=stream)
                check(case, dialect, raised)


def _codes(error: type[ServingError] = ServingError) -> set[str]:
    own = {error.code} if "code" in vars(error) else set()
    return own.union(*(_codes(below) for below in error.__subclasses__()))


def test_every_code_has_its_row() -> None:
    rows = [case.code for case in CASES]
    elsewhere = [error.code for error in SHOWN_ELSEWHERE]
    assert sorted([*rows, *elsewhere]) == sorted(_codes())
    for error, path in SHOWN_ELSEWHERE.items():
        text = (ROOT / path).read_text()
        assert error.code in text or error.__name__ in text, (error, path)

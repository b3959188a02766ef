"""Bad requests get the right error in the dialect's shape, and nothing else breaks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import orjson
import pytest

from ingress.config import Config
from ingress.dialects.base import CountingDialect
from ingress.dialects.registry import DIALECTS
from ingress.dialects.validation import MAX_ENTRIES
from ingress.errors import error_response
from schemas.errors import (
    ErrorInfo,
    ErrorKind,
    InsufficientCredits,
    RequestError,
    UnsupportedValue,
)
from tests.fixtures.requests import ALL, answered_text, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, until
from workers.engines.scripted import ScriptedEngine

JSON = {"content-type": "application/json"}


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack(max_body_bytes=200_000) as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        yield client


def check_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = orjson.loads(response.content)["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return error


async def check_still_serving(http: httpx.AsyncClient, dialect: str) -> None:
    response = await http.post(path_of(dialect), json=request_body(dialect))
    assert answered_text(dialect, response.json()) == "fine"


# --- Not JSON ------------------------------------------------------------------------------------


def malformed(good: bytes) -> Mapping[str, bytes]:
    """Bodies that are not JSON, made of one that is; most would be served if read with leniency."""

    def plus(field: bytes) -> bytes:
        return good[:-1] + b"," + field + b"}"

    return {
        "cut": good[:-3],
        "not an object": b"[" + good + b"]",
        "a string": b'"hello"',
        "nothing": b"",
        "invalid utf-8": b"\x80\x81\x82\xff",
        "invalid utf-8 in a string": plus(b'"unused":"\xc3\x28"'),
        "NaN": plus(b'"temperature":NaN'),
        "Infinity": plus(b'"temperature":Infinity'),
        "half a pair, escaped": plus(b'"unused":"x\\ud83d"'),
        "half a pair, raw": plus(b'"unused":"x\xed\xa0\xbd"'),
        "half a pair in a name": plus(b'"\\ud83d":1'),
        "half a pair in the model": good.replace(MODEL.encode(), b"\\ud83d"),
        "half a pair in stop": plus(b'"stop":"\\ud83d"'),
        "100,000 brackets": b"[" * 100_000,
        "10,000 deep": b'{"x":' * 10_000 + b"1" + b"}" * 10_000,
        "500 deep in an unused field": plus(b'"unused":' + b"[" * 500 + b"]" * 500),
        "200 deep, wide": plus(b'"unused":' + b'[{"a":1},' * 200 + b"1" + b"]" * 200),
        "1,000 deep in a schema": plus(
            b'"tools":[{"name":"a","type":"function","parameters":'
            + b'{"type":"object","properties":{"a":' * 1000
            + b"{}"
            + b"}}" * 1000
            + b"}]"
        ),
        "a name twice": plus(b'"model":"demo-model"'),
        "a name twice, deep": plus(b'"unused":[{"a":{"b":1,"b":1}}]'),
        "single quotes": good.replace(b'"', b"'"),
        "more after the end": good + b"{}",
        "a byte order mark": b"\xef\xbb\xbf" + good,
        "UTF-16": good.decode().encode("utf-16"),
    }


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.json", "errors.json-names", "errors.nothing-breaks", "errors.no-echo")
async def test_not_json(http: httpx.AsyncClient, dialect: str) -> None:
    for stream in (False, True):
        good = orjson.dumps(request_body(dialect, stream=stream))
        assert (await http.post(path_of(dialect), content=good, headers=JSON)).status_code == 200
        for name, raw in malformed(good).items():
            async with asyncio.timeout(5):
                response = await http.post(path_of(dialect), content=raw, headers=JSON)
            error = check_error(response, 400, "invalid_json_request")
            assert MODEL not in error["message"], name
            assert "fine" not in error["message"], name
        await check_still_serving(http, dialect)


@pytest.mark.rule("errors.json", "errors.precedence")
async def test_counting_is_as_strict() -> None:
    async with (
        memory_stack(api_keys=("good-key",), max_body_bytes=200_000) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        for dialect in DIALECTS.values():
            if not isinstance(dialect, CountingDialect):
                continue
            path, key = dialect.count_path, {"x-api-key": "good-key"}
            good = orjson.dumps(request_body(dialect.name))
            response = await http.post(path, content=good, headers=JSON | key)
            assert response.json()["input_tokens"] > 0
            for raw in malformed(good).values():
                response = await http.post(path, content=raw, headers=JSON | key)
                check_error(response, 400, "invalid_json_request")
            check_error(await http.post(path, content=good), 401, "missing_api_key")
            large = b"x" * 200_000
            check_error(await http.post(path, content=large), 413, "request_too_large")
            response = await http.get(path)
            check_error(response, 405, "method_not_allowed")
            assert response.headers["allow"] == "POST"


# --- Wrong shapes --------------------------------------------------------------------------------

SHAPES: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": None}, 400, "schema_validation_failed", "model"),
    ({"model": 5}, 400, "schema_validation_failed", "model"),
    ({"temperature": "hot"}, 400, "schema_validation_failed", "temperature"),
    ({"stream": "yes"}, 400, "schema_validation_failed", "stream"),
    ({"temperature": -1}, 400, "unsupported_value", "temperature"),
    ({"model": "nobody"}, 404, "model_not_found", "model"),
    ({"model": ""}, 404, "model_not_found", "model"),
]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.nothing-breaks")
async def test_wrong_shape(http: httpx.AsyncClient, dialect: str) -> None:
    for (changes, status, code, param), stream in itertools.product(SHAPES, (False, True)):
        body = request_body(dialect, **{"stream": stream, **changes})
        response = await http.post(path_of(dialect), json=body)
        error = check_error(response, status, code)
        assert error["param"] == param
    await check_still_serving(http, dialect)


@pytest.mark.parametrize("dialect", ALL)
async def test_missing_fields(http: httpx.AsyncClient, dialect: str) -> None:
    good = request_body(dialect)
    for field in good.keys() - ({"max_tokens"} if dialect == "completions" else set()):
        body = {name: value for name, value in good.items() if name != field}
        response = await http.post(path_of(dialect), json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field


@pytest.mark.parametrize("messages", [[], [{"role": "wizard", "content": "x"}], [{"content": "x"}]])
async def test_bad_messages(http: httpx.AsyncClient, messages: list[Any]) -> None:
    for dialect in set(ALL) & {"chat", "messages"}:
        body = request_body(dialect, messages=messages)
        response = await http.post(path_of(dialect), json=body)
        assert response.status_code == 400
        assert orjson.loads(response.content)["error"]["param"].startswith("messages")
        await check_still_serving(http, dialect)


NUMBERS: list[tuple[str, str, int]] = [
    ("chat", "max_tokens", 200),
    ("chat", "max_completion_tokens", 200),
    ("responses", "max_output_tokens", 200),
    ("messages", "max_tokens", 200),
    ("completions", "max_tokens", 200),
    ("chat", "top_k", 200),
    ("responses", "top_k", 200),
    ("messages", "top_k", 200),
    ("completions", "top_k", 200),
    ("completions", "priority", 200),
    ("completions", "min_tokens", 400),
    ("chat", "n", 400),
    ("completions", "n", 400),
    ("responses", "top_logprobs", 400),
    ("completions", "logprobs", 400),
    ("completions", "best_of", 400),
    ("completions", "logprob_start_len", 400),
    ("completions", "prompt", 400),
]


@pytest.mark.parametrize(("dialect", "field", "status"), NUMBERS)
@pytest.mark.rule("errors.nothing-breaks")
async def test_numbers_of_any_size(
    http: httpx.AsyncClient, stack: Stack, dialect: str, field: str, status: int
) -> None:
    below = 400 if field != "priority" else 200
    for number, expected in (
        *((above, status) for above in (10**18, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30)),
        *((negative, below) for negative in (-(2**63), -(2**63) - 1, -(10**30))),
        *((broken, 400) for broken in (0.5, 1e300, True, "1")),
    ):
        if number == 1e300 and status == 200:
            continue  # is an integer to JSON
        raw = orjson.dumps(request_body(dialect, **{field: "@"}))
        told = orjson.dumps(number) if not isinstance(number, int) else str(number).lower().encode()
        for stream in (b"false", b"true"):
            content = raw[:-1].replace(b'"@"', told) + b',"stream":' + stream + b"}"
            response = await http.post(path_of(dialect), content=content, headers=JSON)
            assert response.status_code == expected, number
            if expected == 400:
                assert response.json()["error"]["param"] == field
    await check_still_serving(http, dialect)
    await until(lambda: stack.services.admission.in_flight == 0)


ARRAYS = [
    ("chat", "messages"),
    ("chat", "tools"),
    ("chat", "functions"),
    ("chat", "messages[0].content"),
    ("responses", "input"),
    ("responses", "tools"),
    ("responses", "input[0].content"),
    ("messages", "messages"),
    ("messages", "tools"),
    ("messages", "system"),
    ("messages", "messages[0].content"),
    ("completions", "stop"),
    ("completions", "stop_token_ids"),
    ("completions", "prompt"),
]


@pytest.mark.parametrize(("dialect", "array"), ARRAYS)
@pytest.mark.rule("errors.nothing-breaks")
async def test_thousands_of_faults_take_no_longer_than_one(dialect: str, array: str) -> None:
    for count in (MAX_ENTRIES - 1, MAX_ENTRIES + 1):
        faults: list[Any] = [5.5] * count
        body = request_body(dialect)
        if array.endswith(".content"):
            faults = [{"type": "message", "role": "user", "content": faults}]
        body[array.partition("[")[0]] = faults
        began = time.monotonic()
        with pytest.raises(RequestError) as raised:
            DIALECTS[dialect].parse(body)
        assert time.monotonic() - began < 1
        assert (raised.value.info().param or "").startswith(array)


@pytest.mark.rule("errors.no-echo")
async def test_an_error_of_half_a_character_is_still_json() -> None:
    for dialect in DIALECTS.values():
        info = UnsupportedValue("Not \ud83d.", param="a\udc00").info()
        response = error_response(dialect, info, "req_1")
        assert orjson.loads(bytes(response.body))["error"]["message"] == "Not ?."


@pytest.mark.rule("errors.should-retry")
def test_a_status_that_would_mislead() -> None:
    response = error_response(DIALECTS["chat"], InsufficientCredits("No credit.").info(), "req_1")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.rule("errors.retry-after")
def test_a_retry_is_always_given_a_time() -> None:
    for kind, status in ((ErrorKind.RATE_LIMIT, 429), (ErrorKind.OVERLOADED, 503)):
        reported = ErrorInfo(code="busy", kind=kind, status=status, message="Busy.")
        for dialect in DIALECTS.values():
            response = error_response(dialect, reported, "req_1")
            assert response.headers["retry-after"] == "5"
            told = msgspec.structs.replace(reported, retry_after_s=7)
            assert error_response(dialect, told, "req_1").headers["retry-after"] == "7"


# --- Size and media type -------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.body-size")
async def test_oversize_by_length_is_refused_unread(stack: Stack, dialect: str) -> None:
    host, port = stack.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {path_of(dialect)} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "content-length: 200000\r\n\r\n".encode()
    )
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    writer.close()


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.body-size", "errors.nothing-breaks")
async def test_oversize_without_a_length(http: httpx.AsyncClient, dialect: str) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"model":"demo-model","x":"'
        for _ in range(30):
            yield b"y" * 10_000

    response = await http.post(path_of(dialect), content=body(), headers=JSON)
    check_error(response, 413, "request_too_large")
    await check_still_serving(http, dialect)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.body-size")
async def test_one_byte_below_the_limit(http: httpx.AsyncClient, dialect: str) -> None:
    good = orjson.dumps(request_body(dialect, unused=""))
    for size, status in ((199_999, 200), (200_000, 413)):
        raw = good.replace(b'"unused":""', b'"unused":"' + b"x" * (size - len(good)) + b'"')
        assert len(raw) == size
        response = await http.post(path_of(dialect), content=raw, headers=JSON)
        assert response.status_code == status


async def test_a_body_that_does_not_come() -> None:
    async with (
        memory_stack(limits=TimeLimits(body_s=0.1)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        for dialect in ALL:
            host, port = stack.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {path_of(dialect)} HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{{"
            writer.write(head.encode())
            async with asyncio.timeout(5):
                answered = await reader.readuntil(b"\r\n\r\n")
                told = await reader.read(1000)
            writer.close()
            assert answered.startswith(b"HTTP/1.1 408 ")
            assert b"x-should-retry: true" in answered
            assert orjson.loads(told)["error"]["code"] == "request_timeout"
            await check_still_serving(http, dialect)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.media-type")
async def test_media_types(http: httpx.AsyncClient, dialect: str) -> None:
    good = orjson.dumps(request_body(dialect))
    for media_type in ("text/csv", "multipart/form-data; boundary=x", "text/plain"):
        headers = {"content-type": media_type}
        response = await http.post(path_of(dialect), content=good, headers=headers)
        check_error(response, 415, "unsupported_media_type")
    for media_type in ("application/json; charset=utf-8", "Application/JSON", "application/x+json"):
        headers = {"content-type": media_type}
        response = await http.post(path_of(dialect), content=good, headers=headers)
        assert response.status_code == 200, media_type
    for encoding, status in (("gzip", 415), ("zstd", 415), ("identity", 200)):
        headers = {"content-type": "application/json", "content-encoding": encoding}
        response = await http.post(path_of(dialect), content=good, headers=headers)
        assert response.status_code == status, encoding


# --- Paths and methods ---------------------------------------------------------------------------


@pytest.mark.rule("errors.unknown-path")
async def test_paths_and_methods() -> None:
    async with (
        memory_stack(api_keys=("good-key",)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        for path in ("/v1/nothing", "/v1", "/v1/", "/nothing", "/v1/chat/completions/"):
            for method in ("GET", "POST", "DELETE"):
                check_error(await http.request(method, path), 404, "not_found")
        for dialect in ALL:
            for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
                response = await http.request(method, path_of(dialect))
                check_error(response, 405, "method_not_allowed")
                assert response.headers["allow"] == "POST"


@pytest.mark.rule("errors.unknown-path")
async def test_nothing_is_stored_of_responses(http: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/responses/compact"),
    ):
        check_error(await http.request(method, path), 404, "not_found")


@pytest.mark.rule("errors.probe")
async def test_probes() -> None:
    async with (
        memory_stack(api_keys=("good-key",)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        response = await http.get("/")
        assert response.status_code == 200
        assert response.json()["service"] == "headrace"
        response = await http.head("/")
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["request-id"]


# --- Request ids ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.request-id", "errors.request-id-of-client")
async def test_request_id_of_the_client_is_kept(http: httpx.AsyncClient, dialect: str) -> None:
    for body in (request_body(dialect), {}, request_body(dialect, stream=True)):
        headers = {"x-request-id": "abc 1/2<3>" + "x" * 500}
        response = await http.post(path_of(dialect), json=body, headers=headers)
        request_id = response.headers["x-request-id"]
        assert request_id.startswith("client_abc123xxx")
        assert len(request_id) == len("client_") + 128
        for foreign in ("", "<>", "\u00e9"):
            raw = {b"x-request-id": foreign.encode()}
            response = await http.post(path_of(dialect), json=body, headers=raw)
            own = response.headers["x-request-id"]
            assert own.startswith("req_")
            assert len(own) == 16
            assert response.headers["request-id"] == own


async def test_context_overflow_names_the_window() -> None:
    engine = ScriptedEngine(served_id=MODEL, context_length=100)
    async with (
        memory_stack(engine) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        for dialect in ALL:
            for stream in (False, True):
                body = request_body(dialect, "x" * 200, stream=stream, max_tokens=1)
                response = await http.post(path_of(dialect), json=body)
                error = check_error(response, 400, "context_length_exceeded")
                words = "prompt is too long" if dialect == "messages" else "maximum context length"
                assert words in error["message"]
                assert "100" in error["message"]
            await check_still_serving(http, dialect)


# --- Keys ----------------------------------------------------------------------------------------

KEYS: list[list[tuple[bytes, bytes]]] = [
    [(b"authorization", "Bearer kéy-“quoted”".encode())],
    [(b"authorization", b"Bearer k\xe9y")],
    [(b"x-api-key", b"\xff")],
    [(b"x-api-key", b"")],
    [(b"authorization", b"Bearer")],
    [(b"authorization", b"Bearer " + b"k" * 100_000)],
    [(b"authorization", b"Basic Z29vZC1rZXk=")],
    [(b"authorization", b"good-key")],
    [(b"x-api-key", b"Bearer good-key")],
    [(b"x-api-key", b"good-key"), (b"authorization", b"Bearer other")],
    [(b"x-api-key", b"good-key"), (b"x-api-key", b"other")],
    [(b"authorization", b"Bearer good-key2")],
    [(b"authorization", b"Bearer GOOD-KEY")],
]


@pytest.mark.rule("errors.key-bytes", "errors.one-message-for-keys", "errors.one-key")
async def test_bad_keys() -> None:
    async with (
        memory_stack(api_keys=("good-key", "good-key-b")) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        for headers, dialect in itertools.product(KEYS, ALL):
            body = request_body(dialect)
            response = await http.post(path_of(dialect), json=body, headers=headers)
            error = check_error(response, 401, "invalid_api_key")
            assert error["message"] == "The API key is not valid."
        for headers in KEYS:
            assert (await http.get("/v1/models", headers=headers)).status_code == 401
        response = await http.post("/v1/chat/completions?api_key=good-key", json={})
        check_error(response, 401, "missing_api_key")


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.either-key-header", "errors.one-key")
async def test_good_keys(dialect: str) -> None:
    async with (
        memory_stack(api_keys=("good-key", "other-good-key")) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        path, body = path_of(dialect), request_body(dialect)
        goods: list[dict[str, str]] = [
            {"x-api-key": "good-key"},
            {"authorization": "Bearer good-key"},
            {"authorization": "bearer  other-good-key"},
            {"x-api-key": "good-key", "authorization": "Bearer good-key"},
        ]
        for good in goods:
            assert (await http.post(path, json=body, headers=good)).status_code == 200
        others = ["other-good-key", *(f"foreign-{number}" for number in range(15))]
        for other in others:
            headers = {"x-api-key": "good-key", "authorization": f"Bearer {other}"}
            response = await http.post(path, json=body, headers=headers)
            check_error(response, 401, "invalid_api_key")


@pytest.mark.parametrize("dialect", ALL)
async def test_missing_key_names_both_headers(dialect: str) -> None:
    async with (
        memory_stack(api_keys=("good-key",)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        response = await http.post(path_of(dialect), json=request_body(dialect))
        error = check_error(response, 401, "missing_api_key")
        assert "Authorization" in error["message"]
        assert "x-api-key" in error["message"]


# --- Zero data retention -------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.zdr")
async def test_zero_data_retention(dialect: str) -> None:
    keeps_nothing = Config.model_validate({"models": [{"id": MODEL, "zdr_supported": True}]})
    for config, required in ((Config(), 422), (keeps_nothing, 200)):
        async with (
            memory_stack(config=config) as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
        ):
            for stream in (False, True):
                for value, status in (
                    ("required", required),
                    ("Required", required),
                    ("optional", 200),
                    ("true", 200),
                    ("", 200),
                ):
                    response = await http.post(
                        path_of(dialect),
                        json=request_body(dialect, stream=stream),
                        headers={"Wafer-ZDR": value},
                    )
                    assert response.status_code == status, value
                    if status == 422:
                        check_error(response, 422, "model_zdr_not_supported")


# --- Precedence ----------------------------------------------------------------------------------

FAULTS = [
    ("path", 404, "not_found"),
    ("size", 413, "request_too_large"),
    ("key", 401, "invalid_api_key"),
    ("media type", 415, "unsupported_media_type"),
    ("json", 400, "invalid_json_request"),
    ("shape", 400, "schema_validation_failed"),
    ("model", 404, "model_not_found"),
    ("zdr", 422, "model_zdr_not_supported"),
    ("capability", 400, "json_schema_refs_remote"),
    ("capacity", 503, "model_unavailable"),
]
REMOTE = {"$ref": "https://elsewhere.example/schema"}
CAPABILITY: Mapping[str, dict[str, Any]] = {
    "chat": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": REMOTE}}
    },
    "responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": REMOTE}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": REMOTE}}},
    "completions": {"json_schema": REMOTE},
}


def faulty(dialect: str, faults: set[str]) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers of a request with these faults and no other."""
    body = request_body(dialect)
    path, headers = path_of(dialect), {"x-api-key": "good-key", **JSON}
    if "capacity" in faults:
        body["model"] = "unserved"
    if "capability" in faults:
        body |= CAPABILITY[dialect]
    if "zdr" in faults:
        headers["wafer-zdr"] = "required"
    if "model" in faults:
        body["model"] = "nobody"
    if "shape" in faults:
        body["stream"] = "yes"
    if "size" in faults:
        body["unused"] = "x" * 5000
    raw = orjson.dumps(body)
    if "json" in faults:
        raw += b"}"
    if "media type" in faults:
        headers["content-type"] = "text/csv"
    if "key" in faults:
        headers["x-api-key"] = "bad-key"
    if "path" in faults:
        path += "/nothing"
    return path, raw, headers


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.rule("errors.precedence")
async def test_the_first_fault_is_told(dialect: str) -> None:
    unserved = {"id": "unserved", "context_length": 4096, "capabilities": {"completions": True}}
    config = Config.model_validate({"models": [unserved]})
    async with (
        memory_stack(api_keys=("good-key",), config=config, max_body_bytes=5000) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        path, raw, headers = faulty(dialect, set())
        assert (await http.post(path, content=raw, headers=headers)).status_code == 200
        for first, (name, status, code) in enumerate(FAULTS):
            if dialect == "messages" and status == 503:
                status = 529
            for other, *_ in FAULTS[first:]:
                path, raw, headers = faulty(dialect, {name, other})
                response = await http.post(path, content=raw, headers=headers)
                check_error(response, status, code)
        path, raw, headers = faulty(dialect, {name for name, *_ in FAULTS})
        check_error(await http.post(path, content=raw, headers=headers), 404, "not_found")
        assert stack.services.admission.in_flight == 0

"""The OpenAPI document is true: what it shows is served, and answers are as it says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import orjson
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from ingress.config import Config
from ingress.dialects.api import EXAMPLE_MODEL, ApiDescription
from ingress.dialects.base import CountingDialect
from ingress.dialects.registry import DIALECTS
from ingress.openapi import build_document
from tests.fixtures.stack import MODEL, Stack, memory_stack, sse_data
from tests.sdk.test_errors import CASES, Case, ask, stack_for
from tests.unit.dialects.transcripts import DATA

DOCUMENT = build_document("1.0")
APIS: Mapping[str, ApiDescription] = {
    **{dialect.path: dialect.api for dialect in DIALECTS.values()},
    **{
        dialect.count_path: dialect.count_api
        for dialect in DIALECTS.values()
        if isinstance(dialect, CountingDialect)
    },
}
EXAMPLES = [(path, name) for path, api in APIS.items() for name in api.examples]


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        yield client


def resolved(schema: Mapping[str, Any]) -> Any:
    """The schema with its references followed, and closed against properties it does not name."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return resolved(DOCUMENT["components"]["schemas"][name])
    found = {
        key: resolved(value)
        if isinstance(value, dict)
        else [resolved(item) if isinstance(item, dict) else item for item in value]
        if isinstance(value, list)
        else value
        for key, value in schema.items()
    }
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def check(value: Any, schema: Mapping[str, Any]) -> None:
    Draft202012Validator(resolved(schema)).validate(value)


def answers(path: str, method: str = "post", status: str = "200") -> Mapping[str, Any]:
    """The documented media types of an answer."""
    content: Mapping[str, Any] = DOCUMENT["paths"][path][method]["responses"][status]["content"]
    return content


# --- The document itself -------------------------------------------------------------------------


@pytest.mark.rule("openapi.valid")
async def test_the_document_is_valid(http: httpx.AsyncClient) -> None:
    response = await http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    validate(document)
    assert document["openapi"] == "3.1.0"
    files = {"/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"}
    batches = {
        *("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
        *("/v1/messages/batches", "/v1/messages/batches/{batch_id}"),
        "/v1/messages/batches/{batch_id}/cancel",
        "/v1/messages/batches/{batch_id}/results",
    }
    models = {"/v1/models", "/v1/models/{model}"}
    assert set(document["paths"]) == {*APIS, *models, *files, *batches}
    assert set(document["components"]["securitySchemes"]) == {"bearer", "x-api-key"}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for below in value.values():
            yield from references(below)
    elif isinstance(value, list):
        for below in value:
            yield from references(below)


@pytest.mark.rule("openapi.valid")
def test_references_lead_somewhere_and_every_schema_is_one() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", APIS)
@pytest.mark.rule("openapi.fields")
def test_every_field_is_described(path: str) -> None:
    api = APIS[path]
    read = {field.alias or name for name, field in api.request.model_fields.items()}
    assert set(api.fields) == read
    assert set(api.schemas) <= read
    assert all(text.endswith(".") for text in api.fields.values())


@pytest.mark.rule("openapi.errors")
def test_the_catalogue_has_no_error_that_its_endpoints_never_give() -> None:
    paths = DOCUMENT["paths"]
    assert "400" in paths["/v1/models"]["get"]["responses"], "pages can be asked for wrongly"
    assert "400" not in paths["/v1/models/{model}"]["get"]["responses"]


@pytest.mark.rule("openapi.errors")
def test_every_code_of_the_error_tests_is_documented() -> None:
    for case in CASES:
        if case.suffix or case.method != "post":
            continue
        for dialect in case.changes:
            codes = [
                response["description"]
                for response in DOCUMENT["paths"][DIALECTS[dialect].path]["post"][
                    "responses"
                ].values()
            ]
            assert any(f"`{case.code}`" in text for text in codes), (case.code, dialect)


@pytest.mark.parametrize("path", [path for path, api in APIS.items() if api.record])
@pytest.mark.rule("openapi.examples")
def test_the_stream_that_is_shown(path: str) -> None:
    media = answers(path)["text/event-stream"]
    records = list(sse_data(media["example"].encode()))
    if APIS[path].done:
        assert records.pop() == b"[DONE]"
    assert len(records) > 1
    for record in records:
        check(orjson.loads(record), media["x-record-schema"])
    assert media["example"].count("event: ") == (len(records) if APIS[path].named_records else 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.rule("openapi.answers")
def test_every_transcript_is_as_described(path: str) -> None:
    (dialect,) = (dialect for dialect in DIALECTS.values() if dialect.path == path)
    documented = answers(path)
    whole = Draft202012Validator(resolved(documented["application/json"]["schema"]))
    record = Draft202012Validator(resolved(documented["text/event-stream"]["x-record-schema"]))
    directory = DATA / "transcripts" / dialect.name
    for transcript in directory.glob("*.json"):
        if b'"request_id"' not in (body := transcript.read_bytes()):  # or it is an error's
            whole.validate(orjson.loads(body))
    for transcript in directory.glob("*.sse"):
        for data in sse_data(transcript.read_bytes()):
            if data != b"[DONE]":
                record.validate(orjson.loads(data))


# --- Examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "name"), EXAMPLES)
@pytest.mark.rule("openapi.examples")
async def test_an_example_is_served(http: httpx.AsyncClient, path: str, name: str) -> None:
    assert EXAMPLE_MODEL == MODEL
    operation = DOCUMENT["paths"][path]["post"]
    media = operation["requestBody"]["content"]["application/json"]
    body = media["examples"][name]["value"]
    schema = dict(media["schema"]) | {"components": DOCUMENT["components"]}
    Draft202012Validator(schema).validate(orjson.loads(orjson.dumps(body)))
    documented = answers(path)
    for stream in (False, True) if APIS[path].record is not None else (False,):
        response = await http.post(path, json={**body, "stream": stream})
        assert response.status_code == 200, response.text
        if not stream:
            check(response.json(), documented["application/json"]["schema"])
            continue
        assert response.headers["content-type"].startswith("text/event-stream")
        records = list(sse_data(response.content))
        if APIS[path].done:
            assert records.pop() == b"[DONE]"
        assert len(records) > 1
        for record in records:
            check(orjson.loads(record), documented["text/event-stream"]["x-record-schema"])


@pytest.mark.parametrize("text", ["[[tool:f {}]]", "[[say:No.]]"])
@pytest.mark.rule("openapi.answers")
async def test_answers_to_the_older_form_of_tools(http: httpx.AsyncClient, text: str) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "functions": [{"name": "f"}],
    }
    path = DIALECTS["chat"].path
    answer = (await http.post(path, json=body)).json()
    check(answer, answers(path)["application/json"]["schema"])


@pytest.mark.rule("openapi.examples")
async def test_the_catalogue_is_as_described() -> None:
    config = Config.model_validate(
        {
            "models": [
                {
                    "id": MODEL,
                    "aliases": ["other"],
                    "description": "A model.",
                    "tier": "all",
                    "provider": "us",
                    "max_output_tokens": 5,
                    "pricing": {
                        "input_cents_per_million": 1,
                        "output_cents_per_million": 1,
                        "cache_read_microcents_per_million": 1,
                    },
                },
                {"id": "plain", "context_length": 5},
            ]
        }
    )
    async with (
        memory_stack(config=config) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        listed = (await http.get("/v1/models")).json()
        check(listed, answers("/v1/models", "get")["application/json"]["schema"])
        for name in (MODEL, "other", "plain"):
            found = (await http.get(f"/v1/models/{name}")).json()
            check(found, answers("/v1/models/{model}", "get")["application/json"]["schema"])


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.suffix][:8], ids=lambda case: case.code
)
@pytest.mark.rule("openapi.errors")
async def test_an_error_is_as_described(case: Case) -> None:
    async with stack_for(case) as stack:
        for dialect in case.changes:
            raised = await ask(case, stack, dialect, stream=False)
            path = DIALECTS[dialect].path
            documented = DOCUMENT["paths"][path]["post"]["responses"][str(raised.status_code)]
            check(raised.response.json(), documented["content"]["application/json"]["schema"])
            sent = set(raised.response.headers)
            assert {"x-request-id", "request-id"} <= sent
            for header in ("retry-after", "x-should-retry"):
                assert header not in sent or header in documented["headers"]


# --- The page ------------------------------------------------------------------------------------


@pytest.mark.rule("openapi.docs-offline")
async def test_the_page_asks_no_other_host(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(linked) == 4
    texts = [page.text]
    for path in linked:
        assert path.startswith("/docs/")
        response = await http.get(path)
        assert response.status_code == 200
        assert len(response.content) > 100
        if path.endswith(("start.js", ".css")):
            texts.append(response.text)
    for text in texts:
        assert not re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", _without_comments(text))
    start = (await http.get("/docs/start.js")).text
    assert '"/openapi.json"' in start
    assert "validatorUrl: null" in start
    assert "SwaggerUIBundle" in (await http.get("/docs/swagger-ui-bundle.js")).text
    for gone in ("/redoc", "/docs/oauth2-redirect"):
        assert (await http.get(gone)).status_code == 404


def _without_comments(text: str) -> str:
    """Without comments, and without the names of XML vocabularies, which nobody asks for."""
    return re.sub(r"/\*.*?\*/|http://www\.w3\.org/[\w/]+", "", text, flags=re.S)

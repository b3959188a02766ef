"""The model catalogue through both official clients, over a loopback socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest

from ingress.config import Config
from tests.fixtures.stack import MODEL, Stack, memory_stack

CONFIG = Config.model_validate(
    {
        "models": [
            {"id": MODEL, "aliases": ["claude-demo"], "zdr_supported": True},
            {"id": "org/Model.One", "context_length": 100, "aliases": ["org/Model.One:fast"]},
            *({"id": f"model-{number:02}", "context_length": 100} for number in range(30)),
        ]
    }
)
NAMES = [
    MODEL,
    "claude-demo",
    "org/Model.One",
    "org/Model.One:fast",
    *(f"model-{number:02}" for number in range(30)),
]


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack(config=CONFIG, api_keys=("good-key",)) as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        yield client


@pytest.fixture
async def of_openai(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key="good-key", max_retries=0) as client:
        yield client


@pytest.fixture
async def of_anthropic(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=stack.url, api_key="good-key", max_retries=0
    ) as client:
        yield client


@pytest.mark.rule("models.complete-list", "models.aliases")
async def test_openai_lists_all(of_openai: openai.AsyncOpenAI) -> None:
    page = await of_openai.models.list()
    assert [model.id for model in page.data] == NAMES
    assert page.model_extra is not None
    assert page.model_extra["has_more"] is False
    assert page.model_extra["first_id"] == NAMES[0]
    assert page.model_extra["last_id"] == NAMES[-1]


@pytest.mark.rule("models.pages", "models.one-body")
async def test_anthropic_pages_through_all(of_anthropic: anthropic.AsyncAnthropic) -> None:
    page = await of_anthropic.models.list()
    assert [model.id for model in page.data] == NAMES[:20]
    assert page.has_more
    for limit in (1, 7, 1000):
        assert [model.id async for model in of_anthropic.models.list(limit=limit)] == NAMES


@pytest.mark.rule("models.pages")
async def test_anthropic_pages_backwards(of_anthropic: anthropic.AsyncAnthropic) -> None:
    page = await of_anthropic.models.list(before_id="model-29", limit=5)
    assert [model.id for model in page.data] == NAMES[-6:-1]
    assert page.has_more
    seen = [page.data]
    while page.has_next_page():
        page = await page.get_next_page()
        seen.insert(0, page.data)
    assert [model.id for data in seen for model in data] == NAMES[:-1]


@pytest.mark.rule("models.pages")
async def test_anthropic_page_after_the_last(of_anthropic: anthropic.AsyncAnthropic) -> None:
    page = await of_anthropic.models.list(after_id=NAMES[-1])
    assert (page.data, page.has_more, page.first_id, page.last_id) == ([], False, None, None)


@pytest.mark.rule("models.pages")
async def test_page_parameters_without_the_header(http: httpx.AsyncClient) -> None:
    body = (await http.get("/v1/models?limit=1000")).json()
    assert [card["id"] for card in body["data"]] == NAMES
    body = (await http.get("/v1/models", params={"after_id": "ORG/model.one"})).json()
    assert [card["id"] for card in body["data"]] == NAMES[3:23]
    assert body["has_more"] is True


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("after_id=nobody", "after_id"),
        ("before_id=nobody", "before_id"),
        ("after_id=model-01&before_id=model-05", "before_id"),
    ],
)
@pytest.mark.rule("models.pages")
async def test_bad_pages(http: httpx.AsyncClient, query: str, param: str) -> None:
    response = await http.get(f"/v1/models?{query}")
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_value", param)


@pytest.mark.parametrize("name", NAMES[:5])
@pytest.mark.rule("models.retrieve", "models.one-body")
async def test_retrieve(
    of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic, name: str
) -> None:
    assert (await of_openai.models.retrieve(name)).id == name
    assert (await of_openai.models.retrieve(name.upper())).id == name
    info = await of_anthropic.models.retrieve(name.upper())
    assert info.id == name
    assert info.type == "model"
    assert info.lifecycle == "active"
    assert info.max_input_tokens


@pytest.mark.rule("models.retrieve")
async def test_retrieve_with_a_slash_either_way(http: httpx.AsyncClient) -> None:
    for path in ("org/model.one", "org%2Fmodel.one", "org%2FModel.One%3Afast"):
        assert (await http.get(f"/v1/models/{path}")).status_code == 200, path


@pytest.mark.rule("models.retrieve", "models.error-family")
async def test_unknown(
    of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic
) -> None:
    for name in ("nobody", "org/nobody", "org", "nöbody/\u2028x"):
        with pytest.raises(openai.NotFoundError) as raised:
            await of_openai.models.retrieve(name)
        assert raised.value.code == "model_not_found"
        with pytest.raises(anthropic.NotFoundError) as other:
            await of_anthropic.models.retrieve(name)
        assert other.value.request_id
        assert isinstance(other.value.body, dict)


@pytest.mark.rule("models.read-only")
async def test_other_methods(http: httpx.AsyncClient, of_openai: openai.AsyncOpenAI) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}"):
        for method in ("DELETE", "POST", "PUT", "PATCH"):
            response = await http.request(method, path)
            assert response.status_code == 405
            assert response.json()["error"]["code"] == "method_not_allowed"
            assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
        head = await http.head(path)
        assert (head.status_code, head.content) == (200, b"")
    with pytest.raises(openai.APIStatusError) as raised:
        await of_openai.models.delete(MODEL)
    assert raised.value.status_code == 405


@pytest.mark.rule("models.public", "models.wrong-key", "models.error-family")
async def test_keys(http: httpx.AsyncClient, stack: Stack) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}"):
        assert (await http.get(path)).status_code == 200
        assert (await http.get(path, headers={"x-api-key": "good-key"})).status_code == 200
        response = await http.get(path, headers={"x-api-key": "bad-key"})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    async with anthropic.AsyncAnthropic(
        base_url=stack.url, api_key="bad-key", max_retries=0
    ) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.models.list()


@pytest.mark.rule("models.aliases")
async def test_an_alias_answers(of_openai: openai.AsyncOpenAI) -> None:
    answer = await of_openai.chat.completions.create(
        model="Claude-Demo", messages=[{"role": "user", "content": "[[say:Yes.]]"}]
    )
    assert answer.choices[0].message.content == "Yes."
    assert answer.model == MODEL

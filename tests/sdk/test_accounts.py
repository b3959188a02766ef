"""What accounts may do, through both official clients and on every endpoint that takes a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
import structlog

from ingress.config import Config
from schemas.model_card import EngineAccess
from tests.fixtures.forms import CONTENT_TYPE, PURPOSE, file, form
from tests.fixtures.requests import ALL, answered_text, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack
from workers.engines.base import EngineRequest
from workers.engines.scripted import CAPABILITIES, ScriptedEngine, Step, script_from_markers

OTHER = "other-model"
CONFIG = Config.model_validate(
    {
        "models": [
            {"id": MODEL, "aliases": ["demo", "fast"], "zdr_supported": True},
            {"id": OTHER, "aliases": ["slow"], "context_length": 4096},
            {"id": "third", "context_length": 4096, "capabilities": {"completions": True}},
        ],
        "accounts": [
            {"id": "off", "disabled": True, "keys": [{"key": "off-key"}]},
            {"id": "all", "keys": [{"key": "all-key"}]},
            {
                "id": "some",
                "models": [MODEL, "SLOW"],
                "aliases": {"claude-mine": MODEL, "third": MODEL, "gone": "slow"},
                "keys": [{"key": "some-key"}],
            },
            {"id": "shadow", "aliases": {OTHER: MODEL}, "keys": [{"key": "shadow-key"}]},
            {"id": "none", "models": [], "keys": [{"key": "none-key"}]},
            {"id": "zdr", "always_zdr": True, "keys": [{"key": "zdr-key"}]},
            {"id": "official", "profile": "official", "keys": [{"key": "official-key"}]},
            {"id": "ranked", "priorities": [-20, -10], "keys": [{"key": "ranked-key"}]},
            {"id": "high", "priorities": [5, 500], "keys": [{"key": "high-key"}]},
        ],
    }
)


RANKED = msgspec.structs.replace(CAPABILITIES, engine=EngineAccess(priorities=(-100, 100)))


class Ranks(list[int | None]):
    """The ranks of the requests that a worker has run."""

    def script(self, request: EngineRequest) -> Iterator[Step]:
        self.append(request.job.sampling.engine.priority)
        return script_from_markers(request)


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture
async def stack(tmp_path: Path, ranks: Ranks) -> AsyncIterator[Stack]:
    engine = ScriptedEngine(served_id=MODEL, script=ranks.script, capabilities=RANKED)
    async with memory_stack(engine, files=tmp_path, config=CONFIG) as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        yield client


def key(name: str) -> dict[str, str]:
    return {"x-api-key": f"{name}-key"}


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == code
    return error


ENDPOINTS: list[tuple[str, str]] = [
    *(("POST", path_of(name)) for name in ALL),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", f"/v1/files/file-{'0' * 24}"),
    ("DELETE", f"/v1/files/file-{'0' * 24}"),
    ("GET", f"/v1/files/file-{'0' * 24}/content"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", f"/v1/batches/batch_{'0' * 24}"),
    ("POST", f"/v1/batches/batch_{'0' * 24}/cancel"),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/messages/batches"),
    ("GET", f"/v1/messages/batches/msgbatch_{'0' * 24}"),
    ("DELETE", f"/v1/messages/batches/msgbatch_{'0' * 24}"),
    ("POST", f"/v1/messages/batches/msgbatch_{'0' * 24}/cancel"),
    ("GET", f"/v1/messages/batches/msgbatch_{'0' * 24}/results"),
]
"""Every endpoint that takes a key."""

BAD: list[list[tuple[bytes, bytes]]] = [
    [(b"authorization", b"Bearer all-key2")],
    [(b"authorization", "Bearer kéy-“quoted”".encode())],
    [(b"x-api-key", b"k\xe9y")],
    [(b"x-api-key", b"\xff")],
    [(b"x-api-key", b"")],
    [(b"authorization", b"Bearer")],
    [(b"authorization", b"Basic YWxsLWtleQ==")],
    [(b"x-api-key", b"k" * 100_000)],
    [(b"x-api-key", b"all-key"), (b"authorization", b"Bearer some-key")],
    [(b"x-api-key", b"all-key"), (b"x-api-key", b"unknown")],
    [(b"x-api-key", b"all-key"), (b"authorization", b"Basic YWxsLWtleQ==")],
    [(b"x-api-key", b"all-key"), (b"authorization", b"Bearer")],
]


def _ends(headers: list[tuple[bytes, bytes]]) -> list[str]:
    """How the keys in them end."""
    return [value[-7:].decode("latin-1") for _, value in headers if value]


@pytest.mark.rule("accounts.one-message")
async def test_every_endpoint_refuses_every_bad_key_alike(http: httpx.AsyncClient) -> None:
    with structlog.testing.capture_logs() as lines:
        for method, path in ENDPOINTS:
            for headers in BAD:
                response = await http.request(method, path, headers=headers)
                error = refused(response, 401, "invalid_api_key")
                assert error["message"] == "The API key is not valid."
                assert error["param"] is None
                shown = response.text + repr(response.headers)
                assert not [end for end in _ends(headers) if end in shown]
            response = await http.request(method, f"{path}?api_key=all-key&key=all-key")
            if path.startswith("/v1/models"):
                assert response.status_code == 200
            else:
                refused(response, 401, "missing_api_key")
    assert {(line["event"], line["status"]) for line in lines} == {("request.refused", 401)}
    assert not [end for headers in BAD for end in _ends(headers) if end in repr(lines)]
    same = [(b"x-api-key", b"all-key"), (b"x-api-key", b"all-key")]
    same.append((b"authorization", b"Bearer  all-key"))
    for method, path in ENDPOINTS:
        assert (await http.request(method, path, headers=same)).status_code not in (401, 403)


def test_no_endpoint_is_missing(stack: Stack) -> None:
    """The list above has all that the service has."""
    from starlette.routing import Route

    from ingress.errors import ErrorResponses
    from ingress.routes.batches import batch_routes
    from ingress.routes.files import file_routes
    from ingress.routes.inference import inference_endpoints, inference_routes
    from ingress.routes.message_batches import message_batch_routes
    from ingress.routes.models import model_routes

    services = stack.services
    endpoints = inference_endpoints(services, ErrorResponses(services.activity))
    made = (model_routes, file_routes, batch_routes, message_batch_routes)
    for router in (inference_routes(endpoints), *(routes(services) for routes in made)):
        for route in router.routes:
            assert isinstance(route, Route)
            for method in (route.methods or set()) - {"HEAD"}:
                assert any(
                    method == listed and route.path_regex.fullmatch(path)
                    for listed, path in ENDPOINTS
                ), (method, route.path)


@pytest.mark.rule("accounts.disabled")
async def test_a_disabled_account_is_refused_on_every_endpoint(http: httpx.AsyncClient) -> None:
    for method, path in ENDPOINTS:
        refused(await http.request(method, path, headers=key("off")), 403, "account_disabled")


@pytest.mark.rule("accounts.disabled", "accounts.model-access")
async def test_the_official_clients_raise_their_own_classes(stack: Stack) -> None:
    for name, model, code in (
        ("off-key", MODEL, "account_disabled"),
        ("some-key", OTHER + "-2", "model_not_found"),
        ("none-key", MODEL, "model_access_denied"),
    ):
        status = 404 if code == "model_not_found" else 403
        async with openai.AsyncOpenAI(base_url=stack.v1, api_key=name, max_retries=0) as client:
            for stream in (False, True):
                with pytest.raises(openai.APIStatusError) as raised:
                    await client.chat.completions.create(
                        model=model,
                        messages=[{"role": "user", "content": "x"}],
                        stream=stream,
                    )
                assert (raised.value.status_code, raised.value.code) == (status, code)
                assert status == 404 or type(raised.value) is openai.PermissionDeniedError
        async with anthropic.AsyncAnthropic(
            base_url=stack.url, api_key=name, max_retries=0
        ) as of_anthropic:
            with pytest.raises(anthropic.APIStatusError) as refusal:
                await of_anthropic.messages.create(
                    model=model, max_tokens=5, messages=[{"role": "user", "content": "x"}]
                )
            assert refusal.value.status_code == status
            assert status == 404 or type(refusal.value) is anthropic.PermissionDeniedError


@pytest.mark.rule("accounts.model-access", "accounts.aliases")
@pytest.mark.parametrize("dialect", ALL)
async def test_which_models_an_account_may_use(http: httpx.AsyncClient, dialect: str) -> None:
    path = path_of(dialect)

    async def ask(name: str, model: str) -> httpx.Response:
        return await http.post(path, json=request_body(dialect, model=model), headers=key(name))

    # By its id, the catalogue's aliases and its own, which come before a model of that name.
    for model in (MODEL, "FAST", "claude-mine", "Claude-Mine", "third"):
        response = await ask("some", model)
        assert response.status_code == 200, response.text
        assert answered_text(dialect, response.json()) == "fine"
        assert response.json()["model"] == MODEL
    refused(await ask("all", "claude-mine"), 404, "model_not_found")
    error = refused(await ask("none", MODEL), 403, "model_access_denied")
    assert error["param"] == "model"
    assert MODEL not in error["message"]
    refused(await ask("none", "nobody"), 404, "model_not_found")
    # Access was given by a name that the catalogue has for it; nobody serves it.
    unserved = 529 if dialect == "messages" else 503
    if dialect != "completions":
        refused(await ask("some", OTHER), unserved, "model_unavailable")
        refused(await ask("some", "gone"), unserved, "model_unavailable")


@pytest.mark.rule("accounts.model-access", "accounts.aliases")
async def test_counting_obeys_as_generating_does(http: httpx.AsyncClient) -> None:
    for path, dialect in (
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/responses/input_tokens", "responses"),
    ):
        body = request_body(dialect, model="claude-mine")
        assert (await http.post(path, json=body, headers=key("some"))).status_code == 200
        body = request_body(dialect)
        refused(await http.post(path, json=body, headers=key("none")), 403, "model_access_denied")


@pytest.mark.rule("accounts.models-listed")
async def test_what_an_account_sees_of_the_catalogue(stack: Stack, http: httpx.AsyncClient) -> None:
    async def listed(name: str | None) -> list[str]:
        headers = key(name) if name else {}
        return [
            card["id"] for card in (await http.get("/v1/models", headers=headers)).json()["data"]
        ]

    everything = [MODEL, "demo", "fast", OTHER, "slow", "third"]
    assert await listed(None) == await listed("all") == everything
    mine = [MODEL, "claude-mine", "third", "demo", "fast", OTHER, "gone", "slow"]
    assert await listed("some") == mine
    assert await listed("none") == []
    # Each name is there once, and for the model that answers to it.
    assert await listed("shadow") == [MODEL, OTHER, "demo", "fast", "slow", "third"]
    shadow = (await http.get(f"/v1/models/{OTHER}", headers=key("shadow"))).json()
    assert shadow["wafer"]["alias_of"] == MODEL
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="some-key") as client:
        assert [card.id async for card in client.models.list(limit=3)] == mine
        assert (await client.models.retrieve("claude-mine")).id == "claude-mine"
    async with openai.AsyncOpenAI(
        base_url=stack.v1, api_key="some-key", max_retries=0
    ) as of_openai:
        assert [card.id for card in (await of_openai.models.list()).data] == mine
        third: Any = await of_openai.models.retrieve("third")
        assert third.wafer["alias_of"] == MODEL
    # What exists but not for it is not there.
    refused(await http.get(f"/v1/models/{MODEL}", headers=key("none")), 404, "model_not_found")
    refused(await http.get("/v1/models/claude-mine"), 404, "model_not_found")


@pytest.mark.rule("accounts.profile")
async def test_a_profile_of_its_own(http: httpx.AsyncClient) -> None:
    for name, events in (("all", 0), ("official", 1)):
        body = request_body("messages", stream=True)
        response = await http.post("/v1/messages", json=body, headers=key(name))
        assert response.text.count("event: ping") == events


@pytest.mark.rule("accounts.always-zdr")
async def test_zero_data_retention_always(stack: Stack, http: httpx.AsyncClient) -> None:
    for dialect in ALL:
        path = path_of(dialect)
        body = request_body(dialect, model="third" if dialect == "completions" else OTHER)
        refused(
            await http.post(path, json=body, headers=key("zdr")), 422, "model_zdr_not_supported"
        )
        response = await http.post(path, json=request_body(dialect), headers=key("zdr"))
        assert response.status_code == 200
    for path in ("/v1/batches", "/v1/messages/batches", "/v1/files"):
        create: dict[str, Any] = {
            "input_file_id": "file-x",
            "endpoint": "/v1/responses",
            "completion_window": "24h",
        }
        sent: dict[str, Any] = {"json": create}
        if path == "/v1/files":
            sent = {"content": form(PURPOSE, file(b"x"))}
        headers = key("zdr") | ({"content-type": CONTENT_TYPE} if path == "/v1/files" else {})
        refused(await http.post(path, **sent, headers=headers), 422, "batch_zdr_not_supported")


@pytest.mark.rule("accounts.priorities")
async def test_a_priority_out_of_its_range_is_refused(
    http: httpx.AsyncClient, ranks: Ranks
) -> None:
    for name, priority, rank in (
        *(("ranked", rank, rank) for rank in (-20, -15, -10)),
        *(("ranked", rank, None) for rank in (-21, -9, 0, 1 << 70)),
        *(("high", 5, 5), ("high", 500, 100), ("high", 501, None)),
        *(("all", -(1 << 40), -100), ("all", 7, 7)),
    ):
        body = request_body("completions", priority=priority)
        response = await http.post("/v1/completions", json=body, headers=key(name))
        if rank is None:
            error = refused(response, 400, "unsupported_value")
            assert error["param"] == "priority"
            assert "for this account" in error["message"]
        else:
            assert response.status_code == 200
            assert ranks.pop() == rank
        assert not ranks


@pytest.mark.rule("accounts.priorities")
@pytest.mark.parametrize("dialect", ALL)
async def test_who_asks_for_no_priority_has_one_of_its_range(
    http: httpx.AsyncClient, ranks: Ranks, dialect: str
) -> None:
    for name, rank in (("ranked", -10), ("high", 5), ("all", None)):
        response = await http.post(path_of(dialect), json=request_body(dialect), headers=key(name))
        assert response.status_code == 200
        assert ranks.pop() == rank

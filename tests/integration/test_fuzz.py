"""Requests that nobody would write: none crashes anything, and the next one is served.

One half is made up from the OpenAPI document, the other by damaging requests that are served. What
comes back must be as documented, an error of the caller's if it is one, and told within seconds.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import orjson
import pytest
import schemathesis
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fixtures.requests import ALL, answered_text, path_of, request_body
from tests.fixtures.stack import MODEL, memory_stack, until
from tests.integration.test_openapi import APIS, DOCUMENT, check

EXAMPLES = 10
"""Of each endpoint. Raise it to search."""

FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


async def against_a_service(attack: Callable[[httpx.Client], None]) -> None:
    """Runs `attack` beside a live service, which must come through it unharmed."""
    with structlog.testing.capture_logs() as logs:
        async with memory_stack(api_keys=("good-key",)) as stack:
            headers = {"x-api-key": "good-key"}

            def run() -> None:
                with httpx.Client(base_url=stack.url, headers=headers, timeout=10) as http:
                    attack(http)
                    for dialect in ALL:
                        answer = http.post(path_of(dialect), json=request_body(dialect))
                        assert answered_text(dialect, answer.json()) == "fine"

            await asyncio.to_thread(run)
            await until(lambda: stack.services.admission.in_flight == 0)
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


# --- Made up from the document -------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [*(path_of(dialect) for dialect in ALL), "/v1/models", "/v1/models/{model}"]
)
@pytest.mark.rule("errors.nothing-breaks")
async def test_requests_from_the_document(path: str) -> None:
    document = schemathesis.openapi.from_dict(orjson.loads(orjson.dumps(DOCUMENT)))
    operation = document[path]["POST" if path in APIS else "GET"]

    def attack(http: httpx.Client) -> None:
        @given(operation.as_strategy())
        @FEW
        def send(case: Any) -> None:
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = MODEL
            case.headers = {**(case.headers or {}), "x-api-key": "good-key"}
            case.headers.pop("Wafer-ZDR", None)
            response = case.call(base_url=str(http.base_url), timeout=10)
            case.validate_response(response, checks=CHECKS)

        send()

    await against_a_service(attack)


# --- Damaged requests ----------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1, 1e308, -0.0, 0.5])
    | st.text(max_size=5)
    | st.sampled_from(["", "auto", "user", "none", "\x00", "\u2028", "🧪", "$ref", "#/x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "name", "$ref", "role"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=4,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in inner:
        yield (*at, key)
        yield from places(below, (*at, key))


@st.composite
def damaged(draw: st.DrawFn, bodies: list[Mapping[str, Any]]) -> dict[str, Any]:
    """A good request with up to three values replaced, repeated, renamed or gone."""
    body: dict[str, Any] = copy.deepcopy(dict(draw(st.sampled_from(bodies))))
    for _ in range(draw(st.integers(1, 3))):
        *above, key = draw(st.sampled_from(list(places(body)) or [("model",)]))
        holder: Any = body
        for step in above:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "remove", "repeat", "rename"])):
            case "replace":
                holder[key] = draw(VALUES)
            case "remove" if isinstance(holder, dict):
                holder.pop(key, None)
            case "repeat" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case "rename" if isinstance(holder, dict) and key in holder:
                holder[draw(st.text(max_size=4))] = holder.pop(key)
    return body


@pytest.mark.parametrize("path", APIS)
@pytest.mark.rule("errors.nothing-breaks")
async def test_damaged_requests(path: str) -> None:
    api = APIS[path]
    responses = DOCUMENT["paths"][path]["post"]["responses"]

    def attack(http: httpx.Client) -> None:
        @given(damaged([example.body for example in api.examples.values()]))
        @settings(FEW, max_examples=5 * EXAMPLES)
        def send(body: dict[str, Any]) -> None:
            response = http.post(path, json=body)
            assert response.status_code < 500, (response.text, body)
            documented = responses[str(response.status_code)]["content"]
            media_type = response.headers["content-type"].partition(";")[0]
            assert media_type in documented
            if media_type == "application/json":
                check(response.json(), documented[media_type]["schema"])

        send()

    await against_a_service(attack)

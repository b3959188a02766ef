"""Which requests require zero data retention, as far as the worker is told."""

from __future__ import annotations

import httpx
import pytest

from ingress.config import Config
from schemas.job import Job
from schemas.transport.memory import MemoryTransport
from tests.contract.transport_suite import a_job, known, take_one
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, memory_stack
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine, script_from_markers

CONFIG = Config.model_validate(
    {
        "models": [{"id": MODEL, "zdr_supported": True}],
        "accounts": [
            {"id": "secretive", "always_zdr": True, "keys": [{"key": "key-of-secretive"}]},
            {"id": "open", "keys": [{"key": "key-of-open"}]},
        ],
    }
)


@pytest.mark.rule("zdr.who")
async def test_the_header_or_the_account_requires_it() -> None:
    jobs: list[Job] = []

    def remember(request: EngineRequest):  # type: ignore[no-untyped-def]
        jobs.append(request.job)
        return script_from_markers(request)

    engine = ScriptedEngine(served_id=MODEL, script=remember)
    cases = [
        ("open", {}, False),
        ("open", {"wafer-zdr": "optional"}, False),
        ("open", {"Wafer-ZDR": "required"}, True),
        ("secretive", {}, True),
        ("secretive", {"wafer-zdr": "optional"}, True),
    ]
    async with (
        memory_stack(engine, config=CONFIG) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        for account, headers, zdr in cases:
            for dialect in ALL:
                response = await http.post(
                    path_of(dialect),
                    json=request_body(dialect),
                    headers={"authorization": f"Bearer key-of-{account}", **headers},
                )
                assert response.status_code == 200, response.text
                assert jobs[-1].zdr is zdr
    assert len(jobs) == len(cases) * len(ALL)


@pytest.mark.rule("zdr.dead-letters")
async def test_a_job_is_not_set_aside_in_one_process_either() -> None:
    memory = MemoryTransport()
    dispatcher, source = memory.dispatcher(), memory.job_source(model="m", slots=2)
    await known(dispatcher, source, "m")
    job = a_job("m")
    for each in (job, a_job("m", zdr=True)):
        await dispatcher.dispatch(each)
        await (await take_one(source)).dead_letter("killed two workers")
    assert memory.dead_letters == [(job, "killed two workers"), (None, "killed two workers")]
    await source.close()
    await dispatcher.close()

"""The scripted engine keeps the rules that it stands in for."""

from __future__ import annotations

import pytest

from tests.contract.engine_suite import EngineSuite, request
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine


class TestScriptedEngine(EngineSuite):
    @pytest.fixture
    def engine(self) -> ScriptedEngine:
        return ScriptedEngine()

    def long(self, engine_request_id: str = "long") -> EngineRequest:
        prompt = tuple(b"[[k=2000 gap=5]]")
        return request(engine_request_id, prompt_ids=prompt, max_tokens=4000)

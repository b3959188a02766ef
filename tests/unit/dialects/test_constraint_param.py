"""An error about a constraint, found where decoding begins, names the field that asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from ingress.dialects.base import JobContext
from ingress.dialects.registry import DIALECTS
from schemas.model_card import Capabilities, ModelCard

CARD = ModelCard(
    id="m",
    context_length=100,
    capabilities=Capabilities(regex=True, grammar=True, completions=True, tools=True),
)
CONTEXT = JobContext(job_id="j", request_id="r", now=0, deadline=1, queue_deadline=1)
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
HELLO: Any = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO},
    "responses": {"input": "Hello"},
    "messages": {"messages": HELLO, "max_tokens": 5},
    "completions": {"prompt": [1]},
}
NESTED = {"type": "json_schema", "json_schema": SCHEMA}


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        *((name, {}, None) for name in BODIES),
        ("chat", {"regex": "a"}, "regex"),
        ("chat", {"response_format": NESTED}, "response_format"),
        ("responses", {"text": {"format": SCHEMA}}, "text.format"),
        ("responses", {"text": {"format": {"type": "text"}}}, None),
        ("messages", {"output_config": {"format": SCHEMA}}, "output_config.format"),
        ("messages", {"output_format": SCHEMA}, "output_format"),
        ("completions", {"ebnf": 'root ::= "a"'}, "ebnf"),
        ("completions", {"regex": "a"}, "regex"),
        ("completions", {"json_schema": {}}, "json_schema"),
        ("completions", {"structural_tag": {"format": {}}}, "structural_tag"),
        ("completions", {"response_format": NESTED}, "response_format"),
    ],
)
@pytest.mark.rule("structured.invalid-grammar")
def test_the_field_is_named(dialect: str, fields: dict[str, Any], param: str | None) -> None:
    found = DIALECTS[dialect]
    request = found.parse({"model": "m", **BODIES[dialect], **fields})
    sampling = found.normalise(request, CARD, CONTEXT).job.sampling
    assert sampling.constraint_param == param
    assert (sampling.constraint is None) == (param is None)

"""The official SDKs for Python of an older major version, in an environment of their own."""

from __future__ import annotations

from tests.fixtures.clients import HERE, Service, python, run_script

PARIS = {"city": "Paris"}


async def test_older_sdks_for_python(service: Service) -> None:
    told = await run_script(
        service, python(".venv-clients-old"), HERE / "python/old_sdks.py", service.url
    )
    assert told == {
        "chat": ["Two words.", "one two"],
        "chat_tools": ["get_weather", PARIS, "stop"],
        "chat_vision": "A square.",
        "responses_helper": ["one two", "completed"],
        "messages": ["Two words.", "one two", "end_turn"],
        "messages_tools": ["get_weather", PARIS, "tool_use", "end_turn"],
        "counting": True,
        "errors": [["NotFoundError", 404, "model_not_found"], ["NotFoundError", 404]],
    }

"""What the client programs share: running scenarios and telling what came of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGM4IScHRAwQ"
    "CgAfJgQRoo8irwAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL_PROMPT = '[[tool:get_weather {"city": "Paris"}]]'


def report(*scenarios: Callable[[], Any]) -> None:
    """Run every scenario and print its result, or how it failed, by name."""
    results = {}
    for scenario in scenarios:
        try:
            results[scenario.__name__] = scenario()
        except Exception as error:  # whatever a client raises is what came of it
            results[scenario.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))

"""The options of everything that runs an engine: `headrace worker` and `headrace up`."""

from __future__ import annotations

from typing import Any

import click
import yaml

from schemas.options import option, stacked


def parse_engine_args(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """`name=value` pairs, values read as YAML scalars or lists."""
    args: dict[str, Any] = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator:
            raise click.BadParameter(f"{value!r} is not of the form name=value")
        args[name.strip().replace("-", "_")] = yaml.safe_load(text)
    return args


engine_options = stacked(
    option(
        "--served-id",
        "public_id",
        env="SERVED_ID",
        help="Public id of the model. Default: the last part of a path, else --model.",
    ),
    option(
        "--engine",
        env="ENGINE",
        type=click.Choice(["sglang", "upstream", "scripted"]),
        default="sglang",
        help="What generates tokens. `scripted` is for tests and load.",
    ),
    option(
        "--concurrency",
        env="CONCURRENCY",
        type=click.IntRange(min=1),
        default=32,
        help="Requests the engine runs at once; more wait in the queue.",
    ),
    option(
        "--engine-arg",
        "engine_args",
        env="ENGINE_ARGS",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse_engine_args,
        help="Any field of SGLang's ServerArgs. May be repeated.",
    ),
    option(
        "--upstream-url",
        env="UPSTREAM_URL",
        help="Base URL of an OpenAI-compatible server, such as http://host:8001/v1.",
    ),
    option("--upstream-api-key", env="UPSTREAM_API_KEY", help="Key for that server."),
    option(
        "--reasoning-parser",
        env="REASONING_PARSER",
        help="How the model marks its reasoning, by SGLang's names. Default: by template.",
    ),
    option(
        "--tool-call-parser",
        "tool_format",
        env="TOOL_CALL_PARSER",
        help="How the model writes tool calls, by SGLang's names. Default: by template.",
    ),
)

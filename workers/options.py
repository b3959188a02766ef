"""The options of everything that runs an engine: `headrace worker` and `headrace up`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import yaml

from schemas.options import option, stacked
from workers.engines.sglang_tool_parser import MARKERS
from workers.parsing.harmony import HARMONY_NAME
from workers.parsing.reasoning import REASONING_FORMATS
from workers.parsing.tools import TOOL_FORMATS


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


def _known_format(
    *names: str,
) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Refuses a format that does not exist, before a model is loaded for minutes."""

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is not None and value not in names:
            raise click.BadParameter(f"{value!r} is not one of {', '.join(sorted(names))}")
        return value

    return check


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
        "--batch-share",
        env="BATCH_SHARE",
        type=click.FloatRange(0, 1),
        default=0.5,
        help="Part of --concurrency that batch work may have while any live request runs.",
    ),
    option(
        "--batch-floor",
        env="BATCH_FLOOR",
        type=click.IntRange(min=0),
        default=0,
        help="Requests of --concurrency that are never live ones, so that batch work never stands "
        "still.",
    ),
    option(
        "--engine-arg",
        "engine_args",
        env="ENGINE_ARGS",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse_engine_args,
        help="Any field of SGLang's ServerArgs; may be repeated, in the variable with spaces "
        "between.",
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
        callback=_known_format(*REASONING_FORMATS, HARMONY_NAME),
        help="How the model marks its reasoning, by SGLang's names. Default: by template.",
    ),
    option(
        "--tool-call-parser",
        "tool_format",
        env="TOOL_CALL_PARSER",
        callback=_known_format(*TOOL_FORMATS, *MARKERS),
        help="How the model writes tool calls, by SGLang's names. Default: by template.",
    ),
    option(
        "--hidden-reasoning",
        env="HIDDEN_REASONING",
        is_flag=True,
        help="The model may think although told not to: drop that. Such answers do not stream.",
    ),
    option(
        "--repetition-window",
        env="REPETITION_WINDOW",
        type=click.IntRange(min=0),
        default=2048,
        help="End an answer that repeats itself for so many tokens; 0 for never.",
    ),
    option(
        "--heartbeat",
        "heartbeat_s",
        env="HEARTBEAT",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        help="Seconds after which a running request that says nothing shows that it is well.",
    ),
    option(
        "--hang-timeout",
        "hang_timeout_s",
        env="HANG_TIMEOUT",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        help="Seconds without any progress after which SGLang counts as hung and starts again.",
    ),
)

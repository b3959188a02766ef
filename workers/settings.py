"""A worker's settings, parsed once and passed down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

_KEEPING: Final = (
    "crash_dump_folder",
    "debug_tensor_dump_output_folder",
    "enable_lmcache",
    "enable_trace",
    "export_metrics_to_file",
    "hicache_storage_backend",
    "kv_events_config",
    "log_requests",
)
"""Fields of SGLang's `ServerArgs` by which it writes down, or tells others, what it is asked."""

EngineName: TypeAlias = Literal["sglang", "upstream", "scripted"]


class WorkerSettings(BaseModel):
    """Everything a worker needs to know.

    Attributes:
        model: Directory or hub id of the model; for `upstream` the name that server knows.
        served_id: Public id; by default derived from `model`.
        concurrency: Jobs run at once.
        batch_share: Part of the slots that batch Jobs may have while any live one runs.
        batch_floor: Slots that live Jobs never take.
        engine_args: Fields of SGLang's `ServerArgs`.
        reasoning_format: How the model marks its reasoning, by SGLang's parser names.
        tool_format: How the model writes tool calls, by SGLang's parser names.
        hidden_reasoning: The model may think although reasoning is off; drop that.
        repetition_window: An answer whose last so many tokens only repeat a short sequence is ended
            as by its limit; 0 for never.
        grace_s: How long running Jobs may go on after SIGTERM.
        heartbeat_s: How often a running Job that says nothing shows that it is well.
        hang_timeout_s: How long the engine may do nothing at all while it has requests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    served_id: str
    engine: EngineName = "sglang"
    concurrency: int = Field(default=32, ge=1)
    batch_share: float = Field(default=0.5, ge=0, le=1)
    batch_floor: int = Field(default=0, ge=0)
    engine_args: dict[str, Any] = {}
    upstream_url: str | None = None
    upstream_api_key: str | None = Field(default=None, repr=False)
    reasoning_format: str | None = None
    tool_format: str | None = None
    hidden_reasoning: bool = False
    repetition_window: int = Field(default=2048, ge=0)
    grace_s: float = Field(default=30.0, ge=0)
    announce_interval_s: float = Field(default=5.0, gt=0)
    heartbeat_s: float = Field(default=1.0, gt=0)
    hang_timeout_s: float = Field(default=60.0, gt=0)

    @property
    def keeping(self) -> tuple[str, ...]:
        """The engine arguments by which something of requests is kept."""
        found = [name for name in _KEEPING if self.engine_args.get(name)]
        if str(self.engine_args.get("log_level", "")).lower() == "debug":
            found.append("log_level")
        return tuple(found)


def cache_dir() -> Path:
    """Where prepared models are kept, outside any source tree."""
    base = os.environ.get("XDG_CACHE_HOME")  # noqa: TID251 - this is settings.py
    return (Path(base) if base else Path.home() / ".cache") / "headrace"

"""Whether anybody wants traces. Everything else of OpenTelemetry's variables its SDK reads itself.

Source: OpenTelemetry specification, "Environment Variable Specification".
"""

from __future__ import annotations

import os


def traces_wanted() -> bool:
    """Whether there is somewhere to send them.

    Of themselves the variables' defaults would have every process look for a collector on its own
    machine.
    """
    environment = os.environ  # noqa: TID251 - this is settings.py
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporter := environment.get("OTEL_TRACES_EXPORTER", "").strip():
        return exporter != "none"
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return any(environment.get(name) for name in names)

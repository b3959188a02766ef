"""Traces by OpenTelemetry, where an exporter is set; both sides of the broker make spans."""

"""Requests that a client sends again under the same `Idempotency-Key`."""

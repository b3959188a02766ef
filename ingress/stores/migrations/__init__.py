"""Alembic's environment; run by `ingress.stores.schema`."""

"""The configuration file, keys, and where clients come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from ingress.config import Config, ConfigError, load_config
from ingress.console.door import is_loopback
from ingress.doctor.finding import Finding, fail, ok, warn

_LEAST_KEY: Final = 16
_GUESSED: Final = ("change-me", "changeme", "secret", "test", "password", "example", "default")


def config_findings(path: Path | None) -> list[Finding]:
    """Whether the file can be used."""
    if path is None:
        return [ok("config", "no file: models are what workers serve, keys those of --api-key")]
    try:
        config = load_config(path)
    except ConfigError as error:
        return [fail("config", str(error), "Its fields are in docs/configuration.md.")]
    text = f"{path}: {_many(config.models, 'model')}, {_many(config.accounts, 'account')}"
    return [ok("config", text), *_plain_keys(config)]


def _plain_keys(config: Config) -> list[Finding]:
    plain = len(config.api_keys) + sum(
        key.key is not None for account in config.accounts for key in account.keys
    )
    if not plain:
        return []
    advice = "Give keys by their sha256 (docs/accounts.md), or chmod 600 the file."
    return [warn("keys", f"the file has {plain} in plain text", advice)]


def key_findings(keys: Sequence[str]) -> list[Finding]:
    """Whether keys given by option could be guessed. Says nothing of them."""
    weak = [
        key
        for key in keys
        if len(key) < _LEAST_KEY or any(word in key.lower() for word in _GUESSED)
    ]
    if weak:
        text = f"{len(weak)} of {len(keys)} keys can be guessed"
        return [warn("keys", text, "Make better ones: openssl rand -hex 24")]
    return [ok("keys", f"{_many(keys, 'key')} by option")] if keys else []


def address_findings(public_url: str | None, host: str) -> list[Finding]:
    """Whether links in answers lead to where clients are."""
    if public_url is None:
        if is_loopback(host):
            return []
        text = "links in answers follow what requests say of themselves"
        return [warn("public url", text, "Set --public-url to where clients reach the service.")]
    parts = urlsplit(public_url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        advice = "Use https: keys and prompts cross the network as they are."
        return [warn("public url", f"{public_url} has no TLS", advice)]
    return [ok("public url", public_url)]


def together_findings(values: dict[str, Any]) -> list[Finding]:
    """Whether an ingress would start with these options, all of them together."""
    from ingress.commands import ingress_settings

    try:
        ingress_settings(dict(values), database=values.get("database") is not None)
    except click.UsageError as error:
        return [fail("options", error.message, "See headrace ingress --help.")]
    return []


def _many(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"

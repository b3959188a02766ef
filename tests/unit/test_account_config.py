"""Accounts of the configuration file: what they give, and errors that name the line and no key."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingress.accounts.account import Account, Budget, Limits
from ingress.accounts.directory import AccountDirectory, configured
from ingress.accounts.keys import digest_of
from ingress.config import Config, ConfigError, load_config

SECRET = "sk-canary-41c7"
DIGEST = digest_of(b"sk-by-digest").hex()
GOOD = f"""\
api_keys: [sk-alone]
accounts:
  - id: team-a
    name: Team A
    models: [one, two]
    aliases:
      fast: one
      slow: two
    always_zdr: true
    profile: official
    priorities: [-10, 0]
    limits:
      concurrency: 4
      requests_per_minute: 60
      tokens_per_minute: 100000
      budget: {{cents: 500, period: day}}
    keys:
      - key: {SECRET}
        label: laptop
      - sha256: {DIGEST.upper()}
        expires_at: 2100-01-01T00:00:00Z
  - id: team-b
    disabled: true
    keys:
      - key: sk-b
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "headrace.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def directory(tmp_path: Path, text: str, now: float = 0.0) -> AccountDirectory:
    return AccountDirectory(configured(load_config(write(tmp_path, text))), clock=lambda: now)


@pytest.mark.rule("accounts.config")
def test_what_an_account_may(tmp_path: Path) -> None:
    found = directory(tmp_path, GOOD).find(digest_of(SECRET.encode()))
    assert found is not None
    assert found.name == "team-a:laptop"
    assert found.terms == Account(
        account_id="team-a",
        name="Team A",
        models=("one", "two"),
        aliases={"fast": "one", "slow": "two"},
        always_zdr=True,
        profile="official",
        priorities=(-10, 0),
        limits=Limits(
            concurrency=4,
            requests_per_minute=60,
            tokens_per_minute=100_000,
            budget=Budget(cents=500, period="day"),
        ),
    )


@pytest.mark.rule("accounts.config", "accounts.expiry")
def test_a_key_by_its_digest_and_until_it_expires(tmp_path: Path) -> None:
    last = 4_102_444_800.0  # the beginning of 2100
    digest = digest_of(b"sk-by-digest")
    found = directory(tmp_path, GOOD, last - 1).find(digest)
    assert found is not None
    assert (found.name, found.account) == ("team-a:2", "team-a")
    assert directory(tmp_path, GOOD, last).find(digest) is None


@pytest.mark.rule("accounts.api-keys")
def test_a_key_without_an_account_is_one_of_its_own(tmp_path: Path) -> None:
    known = directory(tmp_path, GOOD)
    found = known.find(digest_of(b"sk-alone"))
    assert found is not None
    assert found.terms == Account(account_id=found.account)
    assert found.account not in ("team-a", "anonymous")
    assert known.account(found.account) == found.terms
    # It keeps its files wherever it is listed.
    again = AccountDirectory(configured(Config(), ["other", "sk-alone"])).find(
        digest_of(b"sk-alone")
    )
    assert again is not None
    assert again.account == found.account


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("id: team-b", "id: team-a", 22, "accounts[1].id"),
        ("id: team-b", "id: Team-B", 22, "accounts[1].id"),
        ("id: team-b", "id: anonymous", 22, "accounts[1].id"),
        ("id: team-b", f"id: {'0' * 24}", 22, "accounts[1].id"),
        ("  - id: team-b\n    dis", "  - dis", 22, "accounts[1].id"),
        ("key: sk-b", f"key: {SECRET}", 25, "accounts[1].keys[0]"),
        ("key: sk-b", "key: sk-alone", 25, "accounts[1].keys[0]"),
        ("key: sk-b", f"sha256: {digest_of(SECRET.encode()).hex()}", 25, "accounts[1].keys[0]"),
        ("key: sk-b", f"sha256: {SECRET}", 25, "accounts[1].keys[0].sha256"),
        ("key: sk-b", f"{{key: {SECRET}, sha256: {DIGEST}}}", 25, "accounts[1].keys[0]"),
        ("key: sk-b", "label: none", 25, "accounts[1].keys[0]"),
        ("key: sk-b", f'key: "{SECRET} "', 25, "accounts[1].keys[0].key"),
        ("key: sk-b", 'key: ""', 25, "accounts[1].keys[0].key"),
        ("[sk-alone]", '[""]', 1, "api_keys[0]"),
        ("sha256", f"key: x{SECRET}\n        label: laptop\n      - sha256", 20, ".keys[1]"),
        ("fast: one", "fast: three", 7, "accounts[0].aliases.fast"),
        ("slow: two", "FAST: two", 8, "accounts[0].aliases.FAST"),
        ("[one, two]", "[one, two, ONE]", 5, "accounts[0].models[2]"),
        ("[-10, 0]", "[1, 0]", 11, "accounts[0].priorities"),
        ("[-10, 0]", "[1]", 11, "accounts[0].priorities[1]"),
        ("concurrency: 4", "concurrency: 0", 13, "accounts[0].limits.concurrency"),
        ("concurrency: 4", "concurrency: '4'", 13, "accounts[0].limits.concurrency"),
        ("period: day", "period: week", 16, "accounts[0].limits.budget.period"),
        ("always_zdr", "allways_zdr", 9, "accounts[0].allways_zdr"),
        ("2100-01-01T00:00:00Z", "tomorrow", 21, "accounts[0].keys[1].expires_at"),
        ("2100-01-01T00:00:00Z", "2100-01-01T00:00:00", 21, "accounts[0].keys[1].expires_at"),
    ],
)
@pytest.mark.rule("accounts.config-errors")
def test_an_error_names_line_and_field_and_no_key(
    tmp_path: Path, old: str, new: str, line: int, field: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    text = str(raised.value)
    assert f"{path}:{line}: " in text
    assert f"{field}: " in text
    assert SECRET not in text
    assert digest_of(SECRET.encode()).hex() not in text


@pytest.mark.rule("accounts.config-errors")
def test_what_is_written_twice_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("slow: two", "fast: two"))
    with pytest.raises(ConfigError, match=rf"{path}:8: fast: written twice"):
        load_config(path)
    path = write(tmp_path, "a: &a [*a]\n" + GOOD)  # a knot must not hang the reader
    with pytest.raises(ConfigError, match=rf"{path}:1: a: "):
        load_config(path)


def test_no_key_shows_in_what_is_printed(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    shown = repr(config) + str(config) + repr(configured(config).accounts)
    for secret in (SECRET, "sk-b", "sk-alone", DIGEST, DIGEST.upper()):
        assert secret not in shown

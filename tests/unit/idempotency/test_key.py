from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest
from starlette.requests import Request

from ingress.idempotency.key import KeyedRequest, keyed_request

BODY = {"model": "demo", "n": 1, "messages": [{"role": "user", "content": "hello"}]}


def keyed(
    key: str = "k", account: str = "ours", endpoint: str = "/v1/x", body: Any = BODY
) -> KeyedRequest:
    request = Request({"type": "http", "headers": [(b"idempotency-key", key.encode())]})
    found = keyed_request(request, account, endpoint, body)
    assert found is not None
    return found


@pytest.mark.rule("idempotency.same-json")
def test_the_same_request_has_the_same_digests() -> None:
    again = orjson.loads(orjson.dumps(dict(reversed(BODY.items())), option=orjson.OPT_INDENT_2))
    assert keyed(body=again) == keyed() == keyed(key=" k\t")


@pytest.mark.rule("idempotency.reused", "idempotency.accounts")
def test_another_one_has_others() -> None:
    one = keyed()
    for changes in ({"body": {**BODY, "n": 2}}, {"endpoint": "/v1/y"}):
        other = keyed(**changes)
        assert (other.key == one.key, other.digest == one.digest) == (True, False)
    for changes in ({"account": "theirs"}, {"key": "l"}):
        other = keyed(**changes)
        assert (other.key == one.key, other.digest == one.digest) == (False, False)


@pytest.mark.rule("idempotency.nothing-stored")
def test_a_body_cannot_be_found_by_guessing_bodies() -> None:
    guessed = orjson.dumps(BODY, option=orjson.OPT_SORT_KEYS)
    guesses = (guessed, guessed + b"\n", b"ours\0/v1/x\0" + guessed + b"\n")
    found = {keyed(key=key).digest for key in ("one", "two")}
    assert len(found) == 2
    assert found.isdisjoint(hashlib.sha256(guess).digest() for guess in guesses)


def test_without_a_key_there_is_nothing() -> None:
    request = Request({"type": "http", "headers": []})
    assert keyed_request(request, "ours", "/v1/x", BODY) is None

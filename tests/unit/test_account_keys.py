"""Keys: what they look like, and what is never shown of them."""

import hashlib
import re

import pytest

from ingress.accounts.administration import IssuedKey
from ingress.accounts.keys import digest_of, key_id_in, new_key, own_account
from ingress.accounts.store import KeyRecord


@pytest.mark.rule("accounts.keys-form")
def test_the_form_of_a_key() -> None:
    keys = [new_key() for _ in range(500)]
    for key in keys:
        found = re.fullmatch(r"hr_([A-Za-z0-9]{8})_[A-Za-z0-9]{43}", key.text)
        assert found
        assert key.key_id == f"key_{found[1]}" == key_id_in(key.text)
        assert (
            key.digest == digest_of(key.text.encode()) == hashlib.sha256(key.text.encode()).digest()
        )
    assert len({key.text[12:] for key in keys}) == 500
    letters = "".join(key.text[12:] for key in keys)
    assert len(set(letters)) == 62  # every letter comes up, in 21,500


@pytest.mark.parametrize(
    "text",
    ["", "hr_", "hr_short_x", "hr_12345678", "sk_12345678_x", "hr_1234567é_x", "key_12345678"],
)
def test_what_is_no_key_has_no_name(text: str) -> None:
    assert key_id_in(text) is None


@pytest.mark.rule("accounts.keys-shown-once")
def test_a_key_is_not_in_what_is_printed_of_it() -> None:
    key = new_key()
    record = KeyRecord(key_id=key.key_id, account_id="a", created_at=0.0)
    shown = repr(key) + str(key) + repr(IssuedKey(key.text, record)) + repr(record)
    assert key.text not in shown
    assert key.text[12:] not in shown
    assert repr(key.digest) not in shown
    assert key.digest.hex() not in shown


def test_the_account_of_a_key_without_one_tells_nothing_of_it() -> None:
    digest = digest_of(b"a key")
    assert own_account(digest) not in digest.hex()
    assert re.fullmatch("[0-9a-f]{24}", own_account(digest))

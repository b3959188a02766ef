"""Whom a key names. A plain value."""

from __future__ import annotations

import msgspec

from ingress.accounts.account import UNLIMITED, Account


class Principal(msgspec.Struct, frozen=True):
    """Whom a key names.

    Attributes:
        name: The public id of the key, for logs and records.
        terms: Of its account.
    """

    name: str
    terms: Account = UNLIMITED

    @property
    def account(self) -> str:
        """Whose files and batches it sees."""
        return self.terms.account_id


ANONYMOUS = Principal("anonymous")
"""Everybody, where there are no accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingress.stores.sql import SqlStore
from tests.contract.store_suite import Opener, StoreSuite


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'deep' / 'headrace.db'}"


@pytest.fixture
async def opener(url: str) -> AsyncIterator[Opener]:
    opened = []

    async def open_one() -> SqlStore:
        opened.append(await SqlStore.open(url))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


class TestSqlite(StoreSuite):
    """`SqlStore` in a file."""

"""What every batch store promises; run against each by a subclass that says how to open one."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NoReturn, TypeVar

import msgspec
import pytest

from ingress.batch import lifecycle
from ingress.stores.base import (
    BatchLimitReached,
    BatchStore,
    FileInUse,
    Idempotency,
    IdempotencyConflict,
    LeaseLost,
    Page,
)
from schemas.batch import Batch, Counts, LineError, LineResult, Outcome, StoredFile
from schemas.delta import Usage

T = TypeVar("T")

Opener = Callable[[], Awaitable[BatchStore]]
"""Opens the one store; each call stands for another process."""

MANY = 1000
ODD_TEXTS = (
    "",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff\ud83d",
    "\\u0000",
    "\\",
    "é😀\u2028",
    "x" * 9000,
)


def a_file(number: int, **changes: Any) -> StoredFile:
    return StoredFile(
        **{
            "file_id": f"file-{number:024x}",
            "account": "ours",
            "filename": "input.jsonl",
            "purpose": "batch",
            "size": 5 << 30,
            "created_at": 1_760_000_000,
            "blob": f"files/file-{number:024x}",
            **changes,
        }
    )


def a_batch(number: int, **changes: Any) -> Batch:
    return Batch(
        **{
            "batch_id": f"batch_{number:024x}",
            "account": "ours",
            "shape": "openai",
            "endpoint": "/v1/chat/completions",
            "input_file_id": "file-input",
            "input_blob": "files/file-input",
            "created_at": 1_760_000_000.25 + number,
            "expires_at": 1_760_086_400.25,
            **changes,
        }
    )


def a_result(line: int, outcome: Outcome = "succeeded", text: bytes = b"{}") -> LineResult:
    return LineResult(line=line, outcome=outcome, text=text, usage=Usage(10, 4, 3, 1))


def ended(batch: Batch) -> Batch:
    return msgspec.structs.replace(batch, status="completed", completed_at=1_760_000_500.5)


def counted_up(batch: Batch) -> Batch:
    counts = msgspec.structs.replace(batch.counts, total=batch.counts.total + 1)
    return msgspec.structs.replace(batch, counts=counts)


async def the(wanted: Awaitable[T | None]) -> T:
    value = await wanted
    assert value is not None
    return value


def ids(page: Page[Batch]) -> list[int]:
    return [int(batch.batch_id[-24:], 16) for batch in page.items]


class Refused(Exception):
    """What a caller's function raises."""


class FileSuite:
    async def test_another_process_sees_what_was_added(self, opener: Opener) -> None:
        file = a_file(1, expires_at=1_760_003_600)
        await (await opener()).add_file(file)
        store = await opener()
        assert await store.file("ours", file.file_id, 1_760_000_000.5) == file

    async def test_a_file_of_another_account_is_not_there(self, opener: Opener) -> None:
        store, file = await opener(), a_file(1)
        await store.add_file(file)
        await store.add_file(a_file(2, account="theirs"))
        assert await store.file("theirs", file.file_id, 0) is None
        assert await store.delete_file("theirs", file.file_id, 0) is None
        assert await store.files("theirs", now=0, limit=9, after=file.file_id) is None
        assert await store.file("ours", file.file_id, 0) == file
        assert (await the(store.files("ours", now=0, limit=9))).items == (file,)

    async def test_an_expired_file_is_not_there(self, opener: Opener) -> None:
        store, file = await opener(), a_file(1, expires_at=1_760_003_600)
        await store.add_file(file)
        before, then = 1_760_003_599.9, 1_760_003_600.0
        assert await store.file("ours", file.file_id, before) == file
        assert await store.file("ours", file.file_id, then) is None
        assert (await the(store.files("ours", now=then, limit=9))).items == ()
        assert await store.delete_file("ours", file.file_id, then) is None
        assert await store.expired_files(before, 9) == []
        assert await store.expired_files(then, 9) == [file]
        await store.forget_file(file.file_id)
        assert await store.expired_files(then, 9) == []

    async def test_a_deleted_file_is_not_there(self, opener: Opener) -> None:
        store, file = await opener(), a_file(1)
        await store.add_file(file)
        assert await store.delete_file("ours", file.file_id, 0) == file
        assert await store.file("ours", file.file_id, 0) is None
        assert await store.delete_file("ours", file.file_id, 0) is None

    async def test_one_of_many_deletes(self, opener: Opener) -> None:
        stores, file = [await opener() for _ in range(3)], a_file(1)
        await stores[0].add_file(file)
        told = await asyncio.gather(*(s.delete_file("ours", file.file_id, 0) for s in stores * 3))
        assert sorted(told, key=bool) == [None] * 8 + [file]

    async def test_the_input_of_a_batch_stays_until_the_batch_has_ended(
        self, opener: Opener
    ) -> None:
        store, file, batch = await opener(), a_file(1, expires_at=1_760_003_600), a_batch(1)
        batch = msgspec.structs.replace(batch, input_file_id=file.file_id)
        await store.add_file(file)
        await store.add_batch(batch, max_unfinished=9)
        with pytest.raises(FileInUse):
            await store.delete_file("ours", file.file_id, 0)
        assert await store.file("ours", file.file_id, 0) == file
        assert await store.expired_files(1_770_000_000, 9) == []
        await store.change_batch(batch.batch_id, ended)
        assert await store.expired_files(1_770_000_000, 9) == [file]
        assert await store.delete_file("ours", file.file_id, 0) == file

    @pytest.mark.parametrize("order", ["asc", "desc"])
    async def test_files_are_listed_by_creation_then_id(
        self, opener: Opener, order: Literal["asc", "desc"]
    ) -> None:
        store = await opener()
        # ids that no language sorts by code point
        names = ["file-B", "file-a", "file-C", "file-_", "file-1", "file-é"]
        files = [
            a_file(0, file_id=name, created_at=created) for created in (7, 5) for name in names
        ]
        files = [
            msgspec.structs.replace(file, file_id=f"{file.file_id}{n // 6}")
            for n, file in enumerate(files)
        ]
        for file in files:
            await store.add_file(file)
        wanted = sorted(files, key=lambda file: (file.created_at, file.file_id))
        if order == "desc":
            wanted.reverse()
        listed: list[StoredFile] = []
        while len(listed) < len(files):
            after = listed[-1].file_id if listed else None
            page = await the(store.files("ours", now=0, limit=5, order=order, after=after))
            listed += page.items
            assert page.more == (len(listed) < len(files))
        assert listed == wanted
        last = listed[-1].file_id
        page = await the(store.files("ours", now=0, limit=5, order=order, after=last))
        assert page == Page(items=(), more=False)

    async def test_files_are_listed_by_purpose(self, opener: Opener) -> None:
        store = await opener()
        given, made = a_file(1), a_file(2, purpose="batch_output")
        await store.add_file(given)
        await store.add_file(made)
        page = await the(store.files("ours", now=0, limit=1, purpose="batch"))
        assert page == Page(items=(given,), more=False)
        page = await the(store.files("ours", now=0, limit=1, purpose="batch_output"))
        assert page == Page(items=(made,), more=False)

    async def test_a_list_goes_on_after_a_file_that_has_expired(self, opener: Opener) -> None:
        store = await opener()
        files = [a_file(n, created_at=n, expires_at=100 * n) for n in (1, 2, 3)]
        for file in files:
            await store.add_file(file)
        page = await the(store.files("ours", now=250, limit=9, order="asc", after=files[1].file_id))
        assert page.items == (files[2],)
        assert await store.files("ours", now=0, limit=9, after="file-unknown") is None

    async def test_every_text_is_kept_exactly(self, opener: Opener) -> None:
        store, other = await opener(), await opener()
        for number, text in enumerate(ODD_TEXTS):
            error = LineError(code="duplicate_custom_id", message=text, param=text, line=3)
            batch = a_batch(number, metadata={text: text}, errors=(error,), model=text)
            file = a_file(number, filename=text)
            await store.add_file(file)
            key = Idempotency(key=text, digest=b"one", since=0)
            await store.add_batch(batch, idempotency=key, max_unfinished=99)
            assert await other.file("ours", file.file_id, 0) == file
            assert await other.batch("ours", batch.batch_id) == batch
            again = await other.add_batch(a_batch(99), idempotency=key, max_unfinished=99)
            assert again == batch

    async def test_an_odd_id_is_not_there(self, opener: Opener) -> None:
        store = await opener()
        for text in ODD_TEXTS:
            assert await store.file("ours", text, 0) is None
            assert await store.file(text, text, 0) is None
            assert await store.delete_file("ours", text, 0) is None
            assert await store.files("ours", now=0, limit=1, after=text) is None
            assert await store.batch("ours", text) is None
            assert await store.batches("ours", "openai", limit=1, after=text) is None
            assert await store.batches("ours", "openai", limit=1, before=text) is None
            assert await store.change_batch(text, ended, account="ours") is None
            assert await store.delete_batch("ours", text, lambda batch: None) is None


class BatchSuite:
    async def test_every_field_is_kept(self, opener: Opener) -> None:
        batch = a_batch(
            1,
            status="cancelled",
            model="qwen",
            metadata={"team": "evals"},
            output_expires_after_s=3600,
            in_progress_at=1.5,
            finalizing_at=2.25,
            completed_at=3.125,
            failed_at=4.5,
            expired_at=5.5,
            cancelling_at=6.5,
            cancelled_at=7.5,
            archived_at=8.5,
            counts=Counts(total=15, succeeded=1, errored=2, cancelled=4, expired=8),
            usage=Usage(1 << 40, 1 << 39, 1 << 38, 1 << 37),
            errors=(LineError(code="empty_file", message="It is empty."),),
            output_file_id="file-out",
            error_file_id="file-error",
            results_blob="results/1",
        )
        unset = {name: value for name, value in vars_of(a_batch(1)).items() if value is None}
        assert not [name for name in unset if getattr(batch, name) is None], "set every field"
        await (await opener()).add_batch(batch, max_unfinished=1)
        assert await (await opener()).batch("ours", batch.batch_id) == batch
        bare = a_batch(2, input_file_id=None)
        store = await opener()
        await store.add_batch(bare, max_unfinished=1)
        assert await store.batch("ours", bare.batch_id) == bare
        assert await store.change_batch(bare.batch_id, lambda _: batch_with_id(batch, bare))
        assert await store.batch("ours", bare.batch_id) == batch_with_id(batch, bare)

    async def test_a_batch_of_another_account_is_not_there(self, opener: Opener) -> None:
        store, batch = await opener(), a_batch(1)
        await store.add_batch(batch, max_unfinished=9)
        assert await store.batch("theirs", batch.batch_id) is None
        assert await store.batches("theirs", "openai", limit=9) == Page(items=(), more=False)
        assert await store.batches("theirs", "openai", limit=9, after=batch.batch_id) is None
        assert await store.change_batch(batch.batch_id, ended, account="theirs") is None
        assert await store.delete_batch("theirs", batch.batch_id, lambda _: None) is None
        assert await store.batch("ours", batch.batch_id) == batch

    async def test_batches_are_listed_newest_first_in_both_directions(self, opener: Opener) -> None:
        store = await opener()
        for number in range(1, 8):  # four and five at the same time
            created = 1000.5 + (number if number != 5 else 4)
            await store.add_batch(a_batch(number, created_at=created), max_unfinished=99)
        await store.add_batch(a_batch(99, shape="messages"), max_unfinished=99)
        names = {n: a_batch(n).batch_id for n in range(1, 8)}

        async def listed(**cursors: Any) -> tuple[list[int], bool]:
            page = await the(store.batches("ours", "openai", limit=3, **cursors))
            return ids(page), page.more

        assert await listed() == ([7, 6, 5], True)
        assert await listed(after=names[5]) == ([4, 3, 2], True)
        assert await listed(after=names[4]) == ([3, 2, 1], False)
        assert await listed(after=names[1]) == ([], False)
        assert await listed(before=names[1]) == ([4, 3, 2], True)
        assert await listed(before=names[4]) == ([7, 6, 5], False)
        assert await listed(before=names[7]) == ([], False)
        other_shape = a_batch(99).batch_id
        assert await store.batches("ours", "openai", limit=3, after=other_shape) is None
        assert await store.batches("ours", "openai", limit=3, before="batch_0") is None

    async def test_unfinished_batches_of_all_accounts_are_found(self, opener: Opener) -> None:
        store = await opener()
        for number, account in ((1, "ours"), (2, "theirs"), (3, "ours"), (4, "ours")):
            await store.add_batch(
                a_batch(number, account=account, created_at=1_760_000_000 - number),
                max_unfinished=MANY,
            )
        done = a_batch(3).batch_id
        await store.change_batch(done, lambda one: msgspec.structs.replace(one, status="failed"))
        found = [batch.batch_id for batch in await store.unfinished_batches(MANY)]
        assert found == [a_batch(number).batch_id for number in (4, 2, 1)]
        assert len(await store.unfinished_batches(2)) == 2

    async def test_an_account_has_so_many_unfinished_batches_and_no_more(
        self, opener: Opener
    ) -> None:
        stores = [await opener() for _ in range(3)]

        async def add(number: int) -> bool:
            shape = ("openai", "messages")[number % 2]
            try:
                await stores[number % 3].add_batch(a_batch(number, shape=shape), max_unfinished=4)
            except BatchLimitReached:
                return False
            return True

        added = [n for n, was in enumerate(await asyncio.gather(*map(add, range(12)))) if was]
        assert len(added) == 4
        await stores[0].add_batch(a_batch(50, account="theirs"), max_unfinished=1)
        await stores[1].change_batch(a_batch(added[0]).batch_id, ended)
        await stores[2].add_batch(a_batch(51), max_unfinished=4)
        with pytest.raises(BatchLimitReached):
            await stores[0].add_batch(a_batch(52), max_unfinished=4)

    async def test_a_repeated_request_gets_the_first_batch(self, opener: Opener) -> None:
        stores, request = [await opener() for _ in range(3)], b"of the request"

        async def add(number: int, digest: bytes = request, since: float = 0) -> Batch:
            return await stores[number % 3].add_batch(
                a_batch(number),
                idempotency=Idempotency(key="key", digest=digest, since=since),
                max_unfinished=1,
            )

        again = Idempotency(key="key", digest=request, since=0)
        assert await stores[0].made_before("ours", again) is None
        made = await asyncio.gather(*(add(number) for number in range(9)))
        assert len({batch.batch_id for batch in made}) == 1
        first = made[0]
        assert ids(await the(stores[0].batches("ours", "openai", limit=9))) == ids(
            Page(items=(first,), more=False)
        )
        with pytest.raises(IdempotencyConflict):
            await add(20, digest=b"of another")
        other = Idempotency(key="key", digest=b"of another", since=0)
        with pytest.raises(IdempotencyConflict):
            await stores[0].made_before("ours", other)
        assert await stores[0].made_before("theirs", other) is None
        assert await stores[0].made_before("ours", again) == first
        now = await the(stores[1].change_batch(first.batch_id, ended))
        assert await add(21) == now, "as it is, not as it was"
        theirs = a_batch(22, account="theirs")
        idempotency = Idempotency(key="key", digest=b"of another", since=0)
        added = await stores[0].add_batch(theirs, idempotency=idempotency, max_unfinished=1)
        assert added == theirs

    async def test_an_old_key_is_forgotten(self, opener: Opener) -> None:
        store, first, second = await opener(), a_batch(1), a_batch(2)
        for batch, digest, since in (
            (first, b"one", 0.0),
            (second, b"two", first.created_at + 0.5),
        ):
            idempotency = Idempotency(key="key", digest=digest, since=since)
            added = await store.add_batch(batch, idempotency=idempotency, max_unfinished=9)
            assert added == batch
        again = Idempotency(key="key", digest=b"two", since=second.created_at)
        late = Idempotency(key="key", digest=b"two", since=second.created_at + 0.5)
        assert await store.made_before("ours", late) is None
        assert await store.add_batch(a_batch(3), idempotency=again, max_unfinished=9) == second

    async def test_the_key_of_a_batch_that_was_refused_stays_free(self, opener: Opener) -> None:
        store = await opener()
        idempotency = Idempotency(key="key", digest=b"one", since=0)
        with pytest.raises(BatchLimitReached):
            await store.add_batch(a_batch(1), idempotency=idempotency, max_unfinished=0)
        other = Idempotency(key="key", digest=b"two", since=0)
        batch = a_batch(2)
        assert await store.add_batch(batch, idempotency=other, max_unfinished=1) == batch
        await store.change_batch(batch.batch_id, ended)
        await store.delete_batch("ours", batch.batch_id, lambda _: None)
        again = a_batch(3)
        assert await store.add_batch(again, idempotency=idempotency, max_unfinished=1) == again

    async def test_no_change_is_lost(self, opener: Opener) -> None:
        stores, batch = [await opener() for _ in range(3)], a_batch(1)
        await stores[0].add_batch(batch, max_unfinished=9)
        await asyncio.gather(*(s.change_batch(batch.batch_id, counted_up) for s in stores * 10))
        after = await the(stores[0].batch("ours", batch.batch_id))
        assert after.counts.total == 30

    async def test_changes_and_commits_lose_nothing_of_each_other(self, opener: Opener) -> None:
        one, other = await opener(), await opener()
        await one.add_batch(a_batch(1), max_unfinished=9)
        batch = await the(one.claim("owner", now=0, lease_s=30))
        await asyncio.gather(
            *(one.commit(batch.batch_id, "owner", [a_result(line)]) for line in range(1, 16)),
            *(other.change_batch(batch.batch_id, counted_up) for _ in range(15)),
        )
        after = await the(one.batch("ours", batch.batch_id))
        assert after.counts == Counts(total=15, succeeded=15)
        assert after.usage == Usage(150, 60, 45, 15)

    async def test_a_change_that_fails_changes_nothing(self, opener: Opener) -> None:
        store, batch = await opener(), a_batch(1)
        await store.add_batch(batch, max_unfinished=9)

        def refuse(batch: Batch) -> NoReturn:
            raise Refused

        with pytest.raises(Refused):
            await store.change_batch(batch.batch_id, refuse, files=[a_file(1)])
        assert await store.batch("ours", batch.batch_id) == batch
        assert await store.file("ours", a_file(1).file_id, 0) is None
        with pytest.raises(Refused):
            await store.delete_batch("ours", batch.batch_id, refuse)
        assert await store.batch("ours", batch.batch_id) == batch

    async def test_only_who_holds_the_lease_changes_under_it(self, opener: Opener) -> None:
        store, batch = await opener(), a_batch(1)
        await store.add_batch(batch, max_unfinished=9)
        with pytest.raises(LeaseLost):
            await store.change_batch(batch.batch_id, ended, owner="one", files=[a_file(1)])
        await store.claim("one", now=0, lease_s=30)
        with pytest.raises(LeaseLost):
            await store.change_batch(batch.batch_id, ended, owner="other", files=[a_file(1)])
        assert await store.file("ours", a_file(1).file_id, 0) is None
        changed = await store.change_batch(
            batch.batch_id, ended, owner="one", account="ours", files=[a_file(1)]
        )
        assert changed == ended(batch) == await store.batch("ours", batch.batch_id)
        assert await store.file("ours", a_file(1).file_id, 0) == a_file(1)

    async def test_finishing_twice_adds_its_files_once(self, opener: Opener) -> None:
        store, batch = await opener(), a_batch(1)
        await store.add_batch(batch, max_unfinished=9)
        files = [a_file(1, purpose="batch_output"), a_file(2, purpose="batch_output")]
        await store.change_batch(batch.batch_id, lambda batch: batch, files=files[:1])
        later = [msgspec.structs.replace(file, created_at=1_770_000_000) for file in files]
        await store.change_batch(batch.batch_id, ended, files=later)
        page = await the(store.files("ours", now=0, limit=9, order="asc"))
        assert page.items == (files[0], later[1])

    async def test_a_deleted_batch_is_gone_with_its_results(self, opener: Opener) -> None:
        store, batch = await opener(), a_batch(1)
        await store.add_batch(batch, max_unfinished=9)
        await store.claim("owner", now=0, lease_s=30)
        await store.commit(batch.batch_id, "owner", [a_result(1)])
        deleted = await store.delete_batch("ours", batch.batch_id, lambda _: None)
        assert deleted is not None
        assert deleted.counts.succeeded == 1
        assert await store.batch("ours", batch.batch_id) is None
        assert [line async for line in store.committed(batch.batch_id)] == []
        with pytest.raises(LeaseLost):
            await store.commit(batch.batch_id, "owner", [a_result(2)])
        with pytest.raises(LeaseLost):
            await store.renew(batch.batch_id, "owner", now=0, lease_s=30)

    async def test_old_message_batches_with_results_can_be_archived(self, opener: Opener) -> None:
        store = await opener()
        whole = a_batch(1, shape="messages", status="completed", results_blob="results/1")
        kept = [
            a_batch(2, shape="messages", status="completed"),
            a_batch(3, status="completed", results_blob="results/3"),
            a_batch(4, shape="messages", status="in_progress", results_blob="results/4"),
        ]
        young = a_batch(100, shape="messages", status="completed", results_blob="results/100")
        for batch in (whole, *kept, young):
            await store.add_batch(batch, max_unfinished=9)
        assert await store.archivable(young.created_at, 9) == [whole]
        assert await store.archivable(young.created_at + 1, 9) == [whole, young]
        assert await store.archivable(young.created_at + 1, 1) == [whole]


class LeaseSuite:
    async def test_two_never_claim_the_same(self, opener: Opener) -> None:
        stores = [await opener() for _ in range(4)]
        for number in range(10):
            await stores[0].add_batch(a_batch(number), max_unfinished=99)
        claims = [
            store.claim(f"{turn}-{n}", now=5, lease_s=30)
            for turn in range(5)
            for n, store in enumerate(stores)
        ]
        claimed = [batch for batch in await asyncio.gather(*claims) if batch is not None]
        claimed += [
            batch
            for n in range(10)
            if (batch := await stores[0].claim(f"late-{n}", now=5, lease_s=30))
        ]
        assert sorted(batch.batch_id for batch in claimed) == [
            a_batch(number).batch_id for number in range(10)
        ]

    async def test_the_oldest_that_nobody_holds_is_claimed(self, opener: Opener) -> None:
        store = await opener()
        statuses = ("completed", "validating", "in_progress", "failed", "cancelling", "finalizing")
        for age, status in enumerate(statuses):
            created = 1000.0 - age
            await store.add_batch(
                a_batch(age, status=status, created_at=created), max_unfinished=99
            )
        claimed = [await store.claim(str(n), now=5, lease_s=30) for n in range(5)]
        assert [batch and batch.status for batch in claimed] == [
            "finalizing",
            "cancelling",
            "in_progress",
            "validating",
            None,
        ]

    async def test_a_batch_that_is_not_wanted_is_not_claimed(self, opener: Opener) -> None:
        store = await opener()
        batches = [await store.add_batch(a_batch(n), max_unfinished=9) for n in range(3)]
        ids = [batch.batch_id for batch in batches]
        assert await store.claim("one", now=5, lease_s=30, without=ids) is None
        assert await store.claim("one", now=5, lease_s=30, without=ids[:1]) == batches[1]
        # Its lease is over, and whose it is makes no difference.
        assert await store.claim("two", now=99, lease_s=30, without={*ids[:2]}) == batches[2]
        assert await store.claim("two", now=99, lease_s=30) == batches[2], "an answer was lost"
        assert await store.claim("three", now=99, lease_s=30, without=[ids[0]]) == batches[1]

    async def test_a_lease_lasts_until_its_end(self, opener: Opener) -> None:
        store, other = await opener(), await opener()
        await store.add_batch(a_batch(1), max_unfinished=9)
        batch = await the(store.claim("one", now=100.0, lease_s=30))
        assert await other.claim("two", now=129.9, lease_s=30) is None
        assert await store.renew(batch.batch_id, "one", now=129.0, lease_s=30) == batch
        assert await other.claim("two", now=158.9, lease_s=30) is None
        assert await other.claim("two", now=159.0, lease_s=30) == batch
        for attempt in (
            store.renew(batch.batch_id, "one", now=159.1, lease_s=30),
            store.commit(batch.batch_id, "one", [a_result(1)]),
            store.change_batch(batch.batch_id, ended, owner="one"),
        ):
            with pytest.raises(LeaseLost):
                await attempt
        await store.release(batch.batch_id, "one")
        assert await store.claim("three", now=160.0, lease_s=30) is None, "two holds it still"
        assert await store.batch("ours", batch.batch_id) == batch
        assert [line async for line in store.committed(batch.batch_id)] == []

    async def test_a_lease_that_ran_out_goes_on_if_nobody_took_it(self, opener: Opener) -> None:
        store = await opener()
        await store.add_batch(a_batch(1), max_unfinished=9)
        batch = await the(store.claim("one", now=100.0, lease_s=30))
        assert await store.commit(batch.batch_id, "one", [a_result(1)]) == 1
        await store.renew(batch.batch_id, "one", now=500.0, lease_s=30)
        assert await store.claim("two", now=529.0, lease_s=30) is None

    async def test_a_released_batch_can_be_had_at_once(self, opener: Opener) -> None:
        store = await opener()
        await store.add_batch(a_batch(1), max_unfinished=9)
        batch = await the(store.claim("one", now=100.0, lease_s=30))
        await store.release(batch.batch_id, "one")
        with pytest.raises(LeaseLost):
            await store.commit(batch.batch_id, "one", [a_result(1)])
        with pytest.raises(LeaseLost):
            await store.renew(batch.batch_id, "one", now=100.0, lease_s=30)
        assert await store.claim("two", now=100.0, lease_s=30) == batch

    async def test_a_renewal_sees_a_cancellation(self, opener: Opener) -> None:
        store, other = await opener(), await opener()
        await store.add_batch(a_batch(1), max_unfinished=9)
        batch = await the(store.claim("one", now=0, lease_s=30))
        await other.change_batch(batch.batch_id, lambda batch: lifecycle.cancel(batch, 7.5))
        renewed = await store.renew(batch.batch_id, "one", now=10, lease_s=30)
        assert (renewed.status, renewed.cancelling_at) == ("cancelling", 7.5)

    async def test_of_a_commit_and_a_takeover_one_comes_first(self, opener: Opener) -> None:
        one, other = await opener(), await opener()
        for turn in range(8):
            await one.add_batch(a_batch(turn), max_unfinished=99)
            batch = await the(one.claim(f"one-{turn}", now=0, lease_s=1))
            taken, *committed = await asyncio.gather(
                other.claim(f"two-{turn}", now=5, lease_s=1000),
                *(one.commit(batch.batch_id, f"one-{turn}", [a_result(n)]) for n in range(1, 4)),
                return_exceptions=True,
            )
            if taken is None:  # it stood in line behind a commit and did not wait
                taken = await other.claim(f"two-{turn}", now=5, lease_s=1000)
            assert isinstance(taken, Batch)
            lost = sum(isinstance(answer, LeaseLost) for answer in committed)
            assert committed.count(1) + lost == 3
            now = await the(other.batch("ours", batch.batch_id))
            lines = [line async for line in other.committed(batch.batch_id)]
            assert now.counts.succeeded == len(lines) == 3 - lost
            with pytest.raises(LeaseLost):
                await one.commit(batch.batch_id, f"one-{turn}", [a_result(4)])


class ResultSuite:
    async def test_a_line_is_counted_once(self, opener: Opener) -> None:
        store = await opener()
        batch = await claimed(store)
        first = [a_result(3), a_result(1, "errored"), a_result(7, "expired"), a_result(8)]
        assert await store.commit(batch.batch_id, "owner", first) == 4
        again = [a_result(3, "errored", b"other"), a_result(9, "cancelled"), a_result(9, "errored")]
        assert await store.commit(batch.batch_id, "owner", again) == 1
        assert await store.commit(batch.batch_id, "owner", again) == 0
        assert await store.commit(batch.batch_id, "owner", []) == 0
        after = await the(store.batch("ours", batch.batch_id))
        assert after.counts == Counts(succeeded=2, errored=1, cancelled=1, expired=1)
        assert after.usage == Usage(50, 20, 15, 5)
        assert [line async for line in store.committed(batch.batch_id)] == [1, 3, 7, 8, 9]
        assert [result async for result in store.results(batch.batch_id)] == [
            (1, "errored", b"{}"),
            (3, "succeeded", b"{}"),
            (7, "expired", b"{}"),
            (8, "succeeded", b"{}"),
            (9, "cancelled", b"{}"),
        ]

    async def test_a_line_stored_many_times_at_once_is_counted_once(self, opener: Opener) -> None:
        stores = [await opener() for _ in range(3)]
        batch = await claimed(stores[0])
        groups = [[a_result(line) for line in range(start, start + 20)] for start in range(1, 21)]
        new = await asyncio.gather(
            *(
                stores[n % 3].commit(batch.batch_id, "owner", group)
                for n, group in enumerate(groups * 2)
            )
        )
        assert sum(new) == 39
        after = await the(stores[0].batch("ours", batch.batch_id))
        assert after.counts.succeeded == 39
        assert after.usage.input_tokens == 390

    async def test_results_are_exact_bytes(self, opener: Opener) -> None:
        store = await opener()
        batch = await claimed(store)
        texts = [b"", bytes(range(256)), b'{"a":"\xed\xa0\x80"}', b"\x00", b"x" * 1_500_000]
        await store.commit(
            batch.batch_id, "owner", [a_result(n, text=text) for n, text in enumerate(texts, 1)]
        )
        read = [text async for _, _, text in (await opener()).results(batch.batch_id)]
        assert read == texts

    async def test_results_are_read_in_small_parts(self, opener: Opener) -> None:
        store = await opener()
        batch = await claimed(store)
        text = bytes(range(256)) * 4096  # a megabyte
        for line in range(1, 25):
            await store.commit(batch.batch_id, "owner", [a_result(line, text=text)])
        seen = 0
        tracemalloc.start()
        try:
            async for line, _, found in store.results(batch.batch_id):
                seen += 1
                assert line == seen
                assert len(found) == len(text)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert seen == 24
        assert peak < 16 * len(text)

    async def test_many_results_come_in_order(self, opener: Opener) -> None:
        store = await opener()
        batch, other = await claimed(store), await claimed(store, 2)
        lines = [line * 3 for line in range(1, 5001)]
        for start in range(0, 5000, MANY):
            group = [a_result(line, text=b"%d" % line) for line in lines[start::5][:MANY]]
            await store.commit(batch.batch_id, "owner", group)
        rest = [a_result(line, text=b"%d" % line) for line in lines]
        for start in range(0, 5000, MANY):
            await store.commit(batch.batch_id, "owner", rest[start : start + MANY])
        await store.commit(other.batch_id, "owner-2", [a_result(4)])
        assert [line async for line in store.committed(batch.batch_id)] == lines
        assert [(line, text) async for line, _, text in store.results(batch.batch_id)] == [
            (line, b"%d" % line) for line in lines
        ]
        after = await the(store.batch("ours", batch.batch_id))
        assert after.counts.succeeded == 5000

        await store.drop_results(batch.batch_id)
        assert [line async for line in store.committed(batch.batch_id)] == []
        assert [line async for line in store.committed(other.batch_id)] == [4]
        assert await store.batch("ours", batch.batch_id) == after

    async def test_a_reader_may_stop_half_way(self, opener: Opener) -> None:
        store = await opener()
        batch = await claimed(store)
        await store.commit(batch.batch_id, "owner", [a_result(n) for n in range(1, 100)])
        for _ in range(40):  # more than there are connections
            lines = store.committed(batch.batch_id)
            results = store.results(batch.batch_id)
            assert await anext(lines) == 1
            assert (await anext(results))[0] == 1
        assert await store.commit(batch.batch_id, "owner", [a_result(100)]) == 1

    async def test_blobs_that_a_record_needs_are_told(self, opener: Opener) -> None:
        store = await opener()
        await store.add_file(a_file(1, expires_at=1))  # expired, and still to be swept
        deleted = a_file(2)
        await store.add_file(deleted)
        await store.delete_file("ours", deleted.file_id, 0)
        kinds = {
            "msgbatch_running": ("in_progress", None),
            "msgbatch_over": ("completed", "results/msgbatch_over"),
            "msgbatch_archived": ("completed", None),
        }
        for number, (batch_id, (status, results)) in enumerate(kinds.items()):
            await store.add_batch(
                a_batch(
                    number,
                    batch_id=batch_id,
                    shape="messages",
                    status=status,
                    input_file_id=None,
                    input_blob=f"batches/{batch_id}",
                    results_blob=results,
                ),
                max_unfinished=99,
            )
        await store.add_batch(a_batch(9), max_unfinished=99)
        needed = {
            a_file(1).blob,
            "batches/msgbatch_running",
            "results/msgbatch_over",
            a_batch(9).input_blob,
        }
        others = {
            deleted.blob,
            "batches/msgbatch_over",
            "batches/msgbatch_archived",
            "results/msgbatch_archived",
            "results/msgbatch_running",
            "files/msgbatch_over",
            "files/nobody",
        }
        assert set(await store.named_blobs([*needed, *others])) == needed
        assert set(await store.named_blobs(others)) == set()
        assert set(await store.named_blobs([])) == set()

    async def test_all_unfinished_batches_are_told(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ingress.stores.sql._INDEX_PAGE", 3)
        store = await opener()
        assert [batch_id async for batch_id in store.unfinished()] == []
        for number in range(9):
            status = "completed" if number % 3 == 2 else "cancelling"
            at = 5.0 if number < 4 else number * 1.0
            await store.add_batch(a_batch(number, status=status, created_at=at), max_unfinished=99)
        told = sorted([batch_id async for batch_id in store.unfinished()])
        assert told == [a_batch(number).batch_id for number in (0, 1, 3, 4, 6, 7)]

    async def test_what_was_not_dropped_can_be_found(self, opener: Opener) -> None:
        store = await opener()
        batch, running = await claimed(store), await claimed(store, 2)
        await store.commit(batch.batch_id, "owner", [a_result(1)])
        await store.commit(running.batch_id, "owner-2", [a_result(1)])
        assert await store.undropped(9) == []
        await store.change_batch(batch.batch_id, ended)
        assert await store.undropped(9) == [batch.batch_id]
        await store.drop_results(batch.batch_id)
        assert await store.undropped(9) == []

    async def test_the_event_loop_goes_on(self, opener: Opener) -> None:
        store = await opener()
        batch = await claimed(store)
        group = [a_result(line, text=b"x" * 250_000) for line in range(1, 65)]
        loop, gaps, stop = asyncio.get_running_loop(), [0.0], asyncio.Event()

        async def turn() -> None:
            last = loop.time()
            while not stop.is_set():
                await asyncio.sleep(0)
                now = loop.time()
                gaps.append(now - last)
                last = now

        turning = loop.create_task(turn())
        began = loop.time()
        await store.commit(batch.batch_id, "owner", group)
        async for _ in store.results(batch.batch_id):
            pass
        took = loop.time() - began
        stop.set()
        await turning
        # However slow the machine: a store that blocked would do so for most of that time.
        assert max(gaps) < max(0.5 * took, 0.05)

    async def test_a_caller_that_goes_away_harms_nobody(self, opener: Opener) -> None:
        store = await opener()
        batch = await claimed(store)
        for turn in range(12):
            group = [a_result(turn * 64 + line, text=b"x" * 4096) for line in range(64)]
            committing = asyncio.create_task(store.commit(batch.batch_id, "owner", group))
            for _ in range(turn * 3):
                await asyncio.sleep(0)
            committing.cancel()
            await asyncio.wait([committing])
        lines = [line async for line in store.committed(batch.batch_id)]
        after = await the(store.batch("ours", batch.batch_id))
        assert after.counts.succeeded == len(lines)
        assert len(lines) % 64 == 0
        assert await store.commit(batch.batch_id, "owner", [a_result(5000)]) == 1


class StoreSuite(FileSuite, BatchSuite, LeaseSuite, ResultSuite):
    """All of it."""


async def claimed(store: BatchStore, number: int = 1) -> Batch:
    await store.add_batch(a_batch(number), max_unfinished=99)
    owner = "owner" if number == 1 else f"owner-{number}"
    return await the(store.claim(owner, now=0, lease_s=30))


def vars_of(batch: Batch) -> dict[str, Any]:
    return msgspec.structs.asdict(batch)


def batch_with_id(batch: Batch, other: Batch) -> Batch:
    return msgspec.structs.replace(batch, batch_id=other.batch_id)

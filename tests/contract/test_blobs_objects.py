from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from ingress.batch.endings import closing
from ingress.batch.inputs import read_lines
from schemas.blobs.base import BlobMissing, BlobStoreUnavailable
from schemas.blobs.location import BucketLocation, open_blobs, parse_location
from schemas.blobs.objects import Patience, S3Store
from tests.contract.blob_suite import BlobSuite, in_pieces
from tests.fixtures.broker import Proxy
from tests.fixtures.object_server import CREDENTIALS, ObjectServer, running_object_server

IMPATIENT = Patience(retries=2, first_pause_s=0.01, longest_pause_s=0.05, within_s=5, silence_s=5)
PREFIX = "of/headrace"


class BucketHarness:
    """A bucket of its own, reached through a relay that can be cut."""

    part_bytes = 5 << 20
    env: Mapping[str, str] = CREDENTIALS

    def __init__(self, server: ObjectServer, relay: Proxy, bucket: str) -> None:
        self.server = server
        self.relay = relay
        self.bucket = bucket
        self.location = self.through(server.url)
        server.make_bucket(bucket)

    def through(self, endpoint: str) -> str:
        return f"s3://{self.bucket}/{PREFIX}?endpoint={endpoint}&allow_http=true"

    def store(self) -> S3Store:
        location = parse_location(self.through(self.relay.url.replace("@", "")))
        assert isinstance(location, BucketLocation)
        return S3Store(location, IMPATIENT)

    async def put(self, key: str, data: bytes) -> None:
        """A blob, past the relay."""
        await asyncio.to_thread(self.server.put, self.bucket, f"{PREFIX}/{key}", data)

    def leave_unfinished(self, key: str) -> None:
        self.server.start_upload(self.bucket, f"{PREFIX}/{key}")

    def unfinished(self) -> int:
        return self.server.uploads(self.bucket)

    def held(self) -> int:
        return self.relay.stalled()

    async def take_away(self) -> None:
        await self.relay.refuse()


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with running_object_server() as server:
        yield server


@pytest.fixture
async def harness(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BucketHarness]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:  # noqa: TID251
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    relay = Proxy(server.url)
    await relay.open()
    yield BucketHarness(server, relay, f"bucket-{secrets.token_hex(6)}")
    await relay.close()


class TestS3Store(BlobSuite):
    pass


def location(harness: BucketHarness, **changes: str) -> str:
    bucket, prefix = changes.get("bucket", harness.bucket), changes.get("prefix", PREFIX)
    endpoint = changes.get("endpoint", harness.server.url)
    return f"s3://{bucket}/{prefix}?endpoint={endpoint}&region=eu-central-1&allow_http=true"


async def test_opening_tries_the_bucket_and_leaves_nothing(harness: BucketHarness) -> None:
    store = await asyncio.to_thread(open_blobs, location(harness))
    assert harness.server.names(harness.bucket) == []
    await store.put("files/one", b"data")
    assert harness.server.names(harness.bucket) == [f"{PREFIX}/files/one"]


@pytest.mark.rule("batch.outages")
async def test_the_lines_of_an_input_go_on_after_an_outage_in_the_middle(
    harness: BucketHarness,
) -> None:
    sent = [b"%d " % number + b"x" * 4000 for number in range(1500)]
    await harness.put("files/input", b"\n".join(sent))
    seen: list[bytes | None] = []
    async with closing(read_lines(harness.store(), "files/input")) as lines:
        async for number, line in lines:
            seen.append(line)
            assert number == len(seen)
            if number == 10:  # much of it has not been sent yet
                await harness.relay.refuse()
                returning = asyncio.create_task(come_back(harness))
    await returning
    assert seen == sent


async def come_back(harness: BucketHarness) -> None:
    """End the outage when the reader has given up a try: others have, one after the other."""
    for _ in range(4):
        with pytest.raises(BlobStoreUnavailable):
            await harness.store().get("files/input")
    await harness.relay.open()


async def test_stores_in_one_bucket_are_kept_apart_by_prefix(harness: BucketHarness) -> None:
    at = [location(harness, prefix=prefix) for prefix in ("", "one", "one/two")]
    stores = [await asyncio.to_thread(open_blobs, place) for place in at]
    for number, store in enumerate(stores):
        await store.put("files/same", b"%d" % number)
    for number, store in enumerate(stores):
        assert await store.get("files/same") == b"%d" % number
        assert list(await store.list("files")) == ["files/same"]
    await stores[0].delete("files/same")
    assert await stores[1].get("files/same") == b"1"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bucket": "no-such-bucket"}, "it answered 404 NoSuchBucket"),
        ({"endpoint": "http://127.0.0.1:1"}, "it cannot be reached"),
        ({"endpoint": "https://127.0.0.1:1"}, "it cannot be reached"),
    ],
)
async def test_a_bucket_that_cannot_keep_blobs_is_refused_at_once(
    harness: BucketHarness, changes: dict[str, str], reason: str
) -> None:
    place = parse_location(location(harness, **changes))
    assert isinstance(place, BucketLocation)
    with pytest.raises(BlobStoreUnavailable) as caught:
        await asyncio.to_thread(S3Store.open, place, IMPATIENT)
    assert str(caught.value) == f"no blobs can be kept in {place}: {reason}"
    assert not any(value in str(caught.value) for value in CREDENTIALS.values())


async def test_an_endpoint_of_the_environment_needs_tls_too(
    harness: BucketHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", harness.server.url)
    with pytest.raises(BlobStoreUnavailable, match="only with allow_http=true"):
        await asyncio.to_thread(open_blobs, f"s3://{harness.bucket}")
    store = await asyncio.to_thread(open_blobs, f"s3://{harness.bucket}?allow_http=true")
    await store.put("files/one", b"data")
    assert harness.server.names(harness.bucket) == ["files/one"]


async def test_a_missing_bucket_is_no_missing_blob(harness: BucketHarness) -> None:
    place = parse_location(location(harness, bucket="no-such-bucket"))
    assert isinstance(place, BucketLocation)
    store = S3Store(place, IMPATIENT)
    for attempt in (
        store.get("files/one"),
        anext(store.read("files/one")),
        store.delete("files/one"),
        store.write("files/one", in_pieces(bytes(6 << 20))),
    ):
        with pytest.raises(BlobStoreUnavailable, match=r"^it answered 404 NoSuchBucket$"):
            await attempt


async def test_a_connection_that_breaks_is_made_again(harness: BucketHarness) -> None:
    store, data = harness.store(), os.urandom(20 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in in_pieces(data, 8 << 20):
            harness.relay.cut()
            yield piece

    await store.write("files/one", pieces())
    found = bytearray()
    async for piece in store.read("files/one"):
        if not found:
            harness.relay.cut()
        found += piece
    assert bytes(found) == data
    assert harness.unfinished() == 0


async def test_a_read_that_breaks_off_for_good_is_an_error(harness: BucketHarness) -> None:
    store = harness.store()
    await harness.put("files/one", bytes(32 << 20))
    pieces, found = store.read("files/one"), 0
    with pytest.raises(BlobStoreUnavailable):
        async for piece in pieces:
            await harness.take_away()
            found += len(piece)
    assert 0 < found < 32 << 20


async def test_a_blob_that_is_replaced_while_its_reader_is_cut_off_is_not_mixed(
    harness: BucketHarness,
) -> None:
    store, size = harness.store(), 32 << 20
    await harness.put("files/one", b"a" * size)
    found = bytearray()
    with pytest.raises(BlobStoreUnavailable):
        async for piece in store.read("files/one"):
            if not found:
                await harness.put("files/one", b"b" * size)
                harness.relay.cut()
            found += piece
    assert set(found) == {ord("a")}


async def test_a_store_that_is_silent_is_given_up(harness: BucketHarness) -> None:
    place = parse_location(harness.through(harness.relay.url.replace("@", "")))
    assert isinstance(place, BucketLocation)
    store = S3Store(place, Patience(retries=1, first_pause_s=0.01, within_s=5, silence_s=0.2))
    harness.relay.hold()
    for attempt in (store.get("files/one"), store.put("files/one", b"data")):
        with pytest.raises(BlobStoreUnavailable, match=r"^it did not answer in time$"):
            await attempt
    harness.relay.release()
    with pytest.raises(BlobMissing):
        await store.get("files/two")

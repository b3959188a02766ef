"""Making a batch, of either shape: what is checked, stored and recorded before a batcher sees it.

OpenAI batches name a file that was uploaded before. The requests of a message batch come in its
body, which goes into the blob store while it arrives, one line per request; of a body that is
refused nothing stays.

The order of refusals is that of every request, but for zero data retention: a body that may not be
stored is refused before it is read.

Source: wire reference of the batch APIs; error catalogue, "Precedence".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

import structlog
from starlette.requests import Request

from ingress.admission import check_json, check_length, read_json, too_large
from ingress.auth import Principal
from ingress.batch.access import Stores, check_batch_zdr, stores_of
from ingress.batch.file_object import FILE_ID
from ingress.batch.message_requests import MessageRequests
from ingress.batch.openai_request import CreateBatch
from ingress.batch.upload import no_contents
from ingress.dialects.messages import Messages
from ingress.dialects.validation import validate
from ingress.idempotency.key import RequestDigest, request_digest, reused
from ingress.request_body import body_pieces
from ingress.services import Services
from ingress.settings import IngressSettings
from ingress.stores.base import (
    BatchLimitReached,
    Idempotency,
    IdempotencyConflict,
    StoreUnavailable,
)
from ingress.transfers import Transfer, transferring
from schemas import telemetry
from schemas.batch import Batch, Counts, StoredFile
from schemas.blobs.base import BlobStoreUnavailable
from schemas.errors import (
    BatchLimitExceeded,
    InputFileNotFound,
    UnsupportedValue,
)

log = structlog.get_logger()

WINDOW_S: Final = 24 * 3600.0
"""How long a batch has."""

_MAX_BODY_BYTES: Final = 1_000_000

_PATH: Final = "/v1/batches"


async def create_openai_batch(request: Request, services: Services) -> Batch:
    """The batch that a body asks for.

    Raises:
        ServingError: There is none.
    """
    limits = services.settings.limits
    check_length(request, max_bytes=_MAX_BODY_BYTES)
    principal = services.authenticator.authenticate(request.scope["headers"])
    await services.limiter.require_credit(principal.terms)
    stores = stores_of(services)
    body = await read_json(
        request, max_bytes=_MAX_BODY_BYTES, idle_s=limits.body_s, upload_s=limits.upload_s
    )
    wanted = validate(CreateBatch, body)
    check_batch_zdr(request, principal.terms)
    digest = request_digest(request, principal.account, _PATH)
    services.admission.check_open()
    now = time.time()
    same: Idempotency | None = None
    if digest is not None:
        digest.add(body)
        same = _same_request(services.settings, digest, now)
        with _refusing_reuse():
            first = await stores.records.made_before(principal.account, same)
        if first is not None:
            return first  # also if what it was made of is not there any more
    file = await _input_file(stores, principal, wanted.input_file_id)
    expiry = wanted.output_expires_after
    batch = Batch(
        batch_id=f"batch_{secrets.token_hex(12)}",
        account=principal.account,
        shape="openai",
        endpoint=wanted.endpoint,
        input_file_id=file.file_id,
        input_blob=file.blob,
        metadata=wanted.metadata,
        output_expires_after_s=None if expiry is None else expiry.seconds,
        created_at=now,
        expires_at=now + WINDOW_S,
    )
    return await _add(services.settings, stores, principal, batch, same)


async def _input_file(stores: Stores, principal: Principal, file_id: str) -> StoredFile:
    file = None
    if FILE_ID.fullmatch(file_id):
        file = await stores.records.file(principal.account, file_id, time.time())
    if file is None:
        raise InputFileNotFound("There is no such file.", param="input_file_id")
    if file.purpose != "batch":
        raise UnsupportedValue(
            "`input_file_id` must be a file that was uploaded for the purpose `batch`.",
            param="input_file_id",
        )
    return file


async def create_message_batch(request: Request, services: Services) -> Batch:
    """The batch of the requests in a body.

    Raises:
        ServingError: There is none, and nothing was kept of the body.
    """
    settings = services.settings
    check_length(request, max_bytes=settings.max_batch_body_bytes)
    principal = services.authenticator.authenticate(request.scope["headers"])
    await services.limiter.require_credit(principal.terms)
    stores = stores_of(services)
    check_json(request)
    check_batch_zdr(request, principal.terms)
    digest = request_digest(request, principal.account, f"{Messages.path}/batches")
    async with transferring(
        services, "upload", request_id=request.state.request_id, principal=principal
    ) as transfer:
        # A database that is away is known before so much is sent for nothing.
        await stores.records.batches(principal.account, "messages", limit=1)
        batch_id = transfer.file_id = f"msgbatch_{secrets.token_hex(12)}"
        blob = f"batches/{batch_id}"
        reading = _Reading(request, settings, digest)
        try:
            await stores.blobs.write(blob, reading.lines(transfer))
        except BlobStoreUnavailable as error:
            raise no_contents(error) from None
        now = time.time()
        batch = Batch(
            batch_id=batch_id,
            account=principal.account,
            shape="messages",
            endpoint=Messages.path,
            input_blob=blob,
            created_at=now,
            expires_at=now + WINDOW_S,
            counts=Counts(total=reading.requests.total),
        )
        made: Batch | None = None
        try:
            same = None if digest is None else _same_request(settings, digest, now)
            made = await _add(settings, stores, principal, batch, same)
        finally:
            if made is None or made.batch_id != batch_id:
                await _drop_input(stores, batch)
        return made


class _Reading:
    """The body of one message batch; its requests are added to `digest`, if there is one."""

    def __init__(
        self, request: Request, settings: IngressSettings, digest: RequestDigest | None
    ) -> None:
        limits = settings.limits
        self.requests = MessageRequests(on_request=digest.add if digest is not None else None)
        self._max_bytes = settings.max_batch_body_bytes
        self._body = body_pieces(request, idle_s=limits.body_s, upload_s=limits.file_upload_s)

    async def lines(self, transfer: Transfer) -> AsyncIterator[bytes]:
        """The lines to store. They do not end before the whole body has been found good.

        Raises:
            ServingError: It is refused.
        """
        async with aclosing(self._body):
            async for piece in self._body:
                transfer.size += len(piece)
                if transfer.size >= self._max_bytes:
                    raise too_large(self._max_bytes)
                if lines := self.requests.feed(piece):
                    yield lines
        self.requests.end()


async def _add(
    settings: IngressSettings,
    stores: Stores,
    principal: Principal,
    batch: Batch,
    same: Idempotency | None,
) -> Batch:
    """Record a batch; returns it, or the one that the same request made before."""
    most = settings.max_unfinished_batches
    try:
        with _refusing_reuse():
            made = await stores.records.add_batch(batch, idempotency=same, max_unfinished=most)
    except BatchLimitReached:
        raise BatchLimitExceeded(
            f"There can be {most} unfinished batches at a time; wait until one has ended."
        ) from None
    if made.batch_id == batch.batch_id:
        log.info(
            telemetry.BATCH_CREATED,
            batch_id=batch.batch_id,
            shape=batch.shape,
            endpoint=batch.endpoint,
            principal=principal.name,
        )
    return made


async def _drop_input(stores: Stores, batch: Batch) -> None:
    """Delete the input of a batch that was not made. What cannot be deleted is for the sweeper."""
    try:
        # Who lost the database while it wrote does not know what became of that.
        if await stores.records.batch(batch.account, batch.batch_id) is None:
            await stores.blobs.delete(batch.input_blob)
    except (StoreUnavailable, BlobStoreUnavailable):
        log.warning("batch.left_behind", batch_id=batch.batch_id)


@contextmanager
def _refusing_reuse() -> Iterator[None]:
    """Tell the client of a key that belongs to another request."""
    try:
        yield
    except IdempotencyConflict:
        raise reused() from None


def _same_request(settings: IngressSettings, digest: RequestDigest, now: float) -> Idempotency:
    """What makes the same batch of a repeated request."""
    since = now - settings.idempotency.window_s
    return Idempotency(key=digest.key, digest=digest.value(), since=since)

"""The first step of a batch: its whole input is read once, and nothing runs before it is sound.

Message batches were checked as their requests came in; of theirs only the requests are counted.

Source: wire reference of the batch APIs, "Validation errors".
"""

from __future__ import annotations

import asyncio

from ingress.accounts.account import Account
from ingress.batch.capacity import Capacity
from ingress.batch.endings import closing
from ingress.batch.input_check import Finding, InputCheck, InputLimits
from ingress.catalog import Catalog
from ingress.dialects.completions import Completions
from schemas.batch import Batch, LineError
from schemas.blobs.base import BlobMissing, BlobStore
from schemas.errors import (
    EndpointNotSupported,
    ModelAccessDenied,
    ModelNotFound,
    ModelUnavailable,
)

INPUT_MISSING = LineError(
    code="file_not_found",
    message="The input of this batch is not there any more.",
    param="input_file_id",
)

_UNBOUNDED = InputLimits(requests=1 << 31, size=1 << 40)
"""For what has been checked against limits of its own."""

_LOOK_S = 0.05


async def validate(
    batch: Batch, blobs: BlobStore, catalog: Catalog, capacity: Capacity, terms: Account
) -> Finding:
    """What is to be said of a batch's input.

    Waits until it is known which models there are.

    Args:
        batch: See there.
        blobs: Where its input is.
        catalog: Knows models.
        capacity: Knows those that nobody serves at the moment, too.
        terms: Of the batch's account.

    Raises:
        BlobStoreUnavailable: It cannot be read now.
    """
    while not capacity.heard_all():  # noqa: ASYNC110 - a few seconds at the start of a process
        await asyncio.sleep(_LOOK_S)
    models = _Models(batch, catalog, capacity, terms)
    openai = batch.shape == "openai"
    check = InputCheck(
        shape=batch.shape,
        endpoint=batch.endpoint,
        model_of=models.require if openai else models.name,
        limits=InputLimits() if openai else _UNBOUNDED,
    )
    try:
        async with closing(blobs.read(batch.input_blob)) as pieces:
            async for piece in pieces:
                check.feed(piece)
                if check.done:
                    break
    except BlobMissing:
        return Finding(total=0, model=None, errors=(INPUT_MISSING,))
    finding = check.end()
    if openai:
        return finding
    return Finding(total=finding.total, model=finding.model or None, errors=())


class _Models:
    """The models that lines name."""

    def __init__(self, batch: Batch, catalog: Catalog, capacity: Capacity, terms: Account) -> None:
        self._batch = batch
        self._terms = terms
        self._catalog = catalog
        self._capacity = capacity

    def require(self, name: str) -> str:
        """The id of a model; its name as it is written while nobody tells the id.

        Raises:
            ModelNotFound, ModelAccessDenied, EndpointNotSupported: It cannot do what the batch asks
                for, or not for this account.
        """
        name = self._terms.model_named(name)
        if not self._capacity.exists(name):
            raise ModelNotFound("There is no such model.", param="model")
        try:
            card = self._catalog.lookup(name)
        except (ModelNotFound, ModelUnavailable):
            return name
        self._terms.require_access(card)
        if self._batch.endpoint == Completions.path and not card.capabilities.completions:
            raise EndpointNotSupported("This model has no text completions.", param="model")
        return card.id

    def name(self, name: str) -> str:
        """The same, but nothing is required: an empty name for what there is not."""
        try:
            return self.require(name)
        except (ModelNotFound, ModelAccessDenied, EndpointNotSupported):
            return ""

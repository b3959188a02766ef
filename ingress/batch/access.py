"""Who may come to the files and batches of a server, and whether it has any."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from ingress.accounts.account import Account
from ingress.accounts.directory import AccountDirectory
from ingress.admission import asks_zdr
from ingress.services import Services
from ingress.stores.base import BatchStore
from schemas.batch import Batch
from schemas.blobs.base import BlobStore
from schemas.errors import BatchZdrNotSupported, EndpointNotSupported


class Stores(msgspec.Struct, frozen=True):
    """Where records and contents of files and batches are."""

    records: BatchStore
    blobs: BlobStore


def stores_of(services: Services) -> Stores:
    """Both.

    Raises:
        EndpointNotSupported: The server runs without.
    """
    if services.store is None or services.blobs is None:
        raise EndpointNotSupported(
            "This server has no files and batches: it runs without a database and a blob store."
        )
    return Stores(services.store, services.blobs)


def terms_of_batch(directory: AccountDirectory, batch: Batch) -> Account:
    """The terms of a batch's account; those of a disabled one if it is not there any more.

    Whether it is there at all should have been asked once: see `AccountDirectory.require_known`.
    """
    return directory.account(batch.account) or Account(account_id=batch.account, disabled=True)


def check_batch_zdr(request: Request, terms: Account) -> None:
    """Refuse to store anything for who requires zero data retention.

    Raises:
        BatchZdrNotSupported: It is required.
    """
    if terms.always_zdr or asks_zdr(request):
        raise BatchZdrNotSupported(
            "Files and batches are stored, so they cannot be had with zero data retention."
        )

"""What a request needs of the process it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ingress.accounts.directory import AccountDirectory
from ingress.accounts.store import AccountStore
from ingress.admission import Admission
from ingress.auth import Authenticator, Principal
from ingress.backlog import Backlog
from ingress.catalog import Catalog
from ingress.console.activity import Activity
from ingress.dialects.profile import PROFILES, Profile
from ingress.idempotency.kept import KeptAnswers
from ingress.idempotency.requests import KeyedRequests
from ingress.idempotency.store import IdempotencyStore, MemoryIdempotencyStore
from ingress.limits.limiter import Limiter, NoLimits
from ingress.media import Media
from ingress.metrics import IngressMetrics
from ingress.settings import IngressSettings
from ingress.stores.base import BatchStore
from ingress.usage.metering import Metering
from schemas.blobs.base import BlobStore
from schemas.model_card import ModelCard
from schemas.tracing.tracing import Tracing
from schemas.transport.base import Dispatcher
from schemas.transport.pods import Pods

if TYPE_CHECKING:
    from ingress.console.events import Watch
    from ingress.siblings import Siblings


class UnderWay(Protocol):
    """What a process that ends must wait for or give up."""

    def refuse(self) -> None:
        """The process takes no more work: give it up if it has not begun."""

    def shut_down(self) -> None:
        """The process ends: give it up."""


class Services:
    """What a request needs of the process it runs in.

    Attributes:
        store: Records of files and batches; None where there are none.
        blobs: Their contents; None where there are no files, batches and large Jobs.
        directory: Who is known.
        accounts: Where accounts are kept; None where there are only those of the configuration.
        limiter: What accounts may use.
        usage: Where records of requests go.
        activity: The requests of this process, for a console.
        pods: The other processes; None where there are none.
        tracing: Makes spans; None where nobody wants any.
        watch: What a console shows; None where nobody may look.
        siblings: The processes that serve behind the same port; None where this is the only one.
        keyed_requests: Those with an `Idempotency-Key`.
        answers: The answers and transfers under way, for shutting down.
    """

    def __init__(
        self,
        *,
        settings: IngressSettings,
        dispatcher: Dispatcher,
        catalog: Catalog,
        directory: AccountDirectory,
        metrics: IngressMetrics,
        media: Media,
        store: BatchStore | None = None,
        blobs: BlobStore | None = None,
        accounts: AccountStore | None = None,
        limiter: Limiter | None = None,
        usage: Metering | None = None,
        idempotency: IdempotencyStore | None = None,
        pods: Pods | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.settings = settings
        self.dispatcher = dispatcher
        self.catalog = catalog
        self.directory = directory
        self.authenticator = Authenticator(directory)
        self.accounts = accounts
        self.metrics = metrics
        self.media = media
        self.limiter = limiter or NoLimits()
        self.usage = usage or Metering()
        self.activity = Activity()
        self.pods = pods
        self.tracing = tracing
        self.watch: Watch | None = None
        self.siblings: Siblings | None = None
        self.admission = Admission(
            max_concurrent=settings.max_concurrent, open_backlog=self._open_backlog
        )
        self.answers: set[UnderWay] = set()
        self.keyed_requests = KeyedRequests(
            settings.idempotency,
            idempotency or MemoryIdempotencyStore(),
            None if blobs is None else KeptAnswers(blobs),
            write_s=settings.limits.write_s,
            wait_s=settings.limits.queue_wait_s,
            metrics=metrics,
            under_way=self.answers,
        )
        self._settling: set[asyncio.Task[None]] = set()

    def profile_of(self, principal: Principal) -> Profile:
        """The dialect profile of a principal's requests: its account's, else the deployment's."""
        return PROFILES[principal.terms.profile or self.settings.profile]

    def _open_backlog(self, model: str) -> Backlog:
        settings = self.settings
        return Backlog(
            max_requests=settings.max_queued,
            max_tokens=settings.max_queued_tokens,
            max_wait_s=settings.limits.queue_wait_s,
            clock=asyncio.get_running_loop().time,
            on_accepted=self.metrics.queue_wait.labels(model, "interactive").observe,
        )

    def queue_deadline(self, card: ModelCard, now: float) -> float:
        """Until when a Job may wait, in Unix seconds by the clocks of those who are to judge it."""
        return now + self.settings.limits.queue_wait_s + self.catalog.clock_ahead_s(card)

    def settle(self, settling: Coroutine[Any, Any, None]) -> None:
        """Let a request that is over find out what it used, beside everything else."""
        task = asyncio.create_task(settling)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def settled(self) -> None:
        """Wait until all that are over have."""
        while self._settling:
            await asyncio.wait(self._settling)

    def begin_shutdown(self) -> None:
        """Take no more requests, and send those away that no worker has begun; the rest goes on."""
        self.admission.shutting_down = True
        for answer in tuple(self.answers):
            answer.refuse()

    def end_answers(self) -> None:
        """Give up the answers that are still under way."""
        for answer in tuple(self.answers):
            answer.shut_down()

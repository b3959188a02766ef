"""This service: over memory, and over RabbitMQ with reply queues of either kind.

Authentication, records of usage and cancellation are on, as they always are. Its engine is the
scripted one, in the worker's process as SGLang is; so what that costs is counted with it.
`headrace-upstream` has it behind HTTP instead, where everybody else's is: slower, but there the
engine tells when it notices that a client has left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from benchmarks.peers.base import STREAMS, Peer, Site
from benchmarks.processes import Target
from tests.fixtures.ports import free_port

_KEY = "a-key-of-the-benchmark"


class Headrace(Peer):
    """Over a RabbitMQ of its own, or the one that was given, with one worker."""

    dialects = ("chat", "messages", "responses")
    ours = True
    ingress: ClassVar[tuple[str, ...]] = ()

    def start(self, site: Site) -> Target:
        url, broker = site.broker()
        worker = site.module(
            f"{self.name}-worker",
            *("ingress", "worker", "--model", "scripted", "--served-id", self.name),
            *self.engine(site),
            *("--amqp-url", url, "--concurrency", str(STREAMS), "--no-supervise"),
        )
        target = self.served(site, "ingress", "--amqp-url", url, *self.ingress)
        parts = (*target.parts, ("worker", worker), *((("broker", broker),) if broker else ()))
        # Where they have one broker, it is by the model that a request finds its worker.
        return replace(target, parts=parts, model=self.name)

    def engine(self, site: Site) -> tuple[str, ...]:
        """Options of the worker that say which engine it has."""
        del site
        return ("--engine", "scripted")

    def served(self, site: Site, *command: str) -> Target:
        """Start what clients speak to."""
        port = free_port()
        process = site.module(
            self.name,
            *("ingress", *command, "--port", str(port), "--api-key", _KEY),
            *("--max-concurrent", str(STREAMS), "--max-queued", str(STREAMS)),
            *("--usage-log", str(site.place / f"{self.name}-usage.jsonl")),
        )
        return Target(
            name=self.name,
            port=port,
            parts=(("ingress", process),),
            key=_KEY,
            dialects=self.dialects,
            engine=True,
            hang_up=False,
        )


class Shared(Headrace):
    """Ingress, RabbitMQ, worker; 64 reply queues, which more streams share (the default)."""

    name = "headrace"


class Dedicated(Headrace):
    """The same with a reply queue for every stream."""

    name = "headrace-dedicated"
    ingress = ("--reply-queues", "0")


class Memory(Headrace):
    """`headrace up`: the same in one process, without a broker."""

    name = "headrace-memory"

    def start(self, site: Site) -> Target:
        return self.served(
            site,
            *("up", "--engine", "scripted", "--model", "scripted", "--no-batch"),
            *("--no-supervise", "--concurrency", str(STREAMS)),
        )


class Upstream(Headrace):
    """Ingress, RabbitMQ, worker; the engine behind HTTP, as that of the peers is."""

    name = "headrace-upstream"

    def start(self, site: Site) -> Target:
        return replace(super().start(site), engine=False, hang_up=True)

    def engine(self, site: Site) -> tuple[str, ...]:
        return ("--engine", "upstream", "--upstream-url", f"{site.engine_url}/v1")

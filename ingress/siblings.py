"""The processes behind one port, as one of them sees the others.

Who asks a pod for its metrics, or whether it is ready, reaches one of its processes and means all.
So each answers the others at a Unix socket (`Place.door`): one letter is the question, and all
until the end is the answer.

- *Metrics.* Every sample has the label `process`, the number of the one that it is of; a process
  that is gone is not on the page. Nothing is added up: of a sum nobody could tell that one of its
  parts began anew, and `rate` would count all of the others a second time.
- *Readiness.* The pod is not ready before all its processes have been up once; later one that is
  gone does not count, for it gets no requests. One that listens and does not answer does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from ingress.place import Place
from ingress.readiness import Readiness

if TYPE_CHECKING:
    from ingress.services import Services

State: TypeAlias = Literal["ready", "not ready", "starting", "silent", "gone"]
"""Of a process: `starting`, it has not been up yet; `gone`, it has; `silent`, it is up."""

_METRICS: Final = b"m"
_READINESS: Final = b"r"

_PATIENCE_S: Final = 2.0
"""A process that has not answered by then is left out."""

_FAMILY: Final = re.compile(rb"^# HELP ", re.MULTILINE)


class Siblings:
    """The others, and this process among them.

    Attributes:
        place: Which of them this is.
    """

    def __init__(self, place: Place, services: Services) -> None:
        self.place = place
        self._services = services
        self._others = [number for number in range(1, place.of + 1) if number != place.number]

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer the others while the block runs."""
        server = await asyncio.start_unix_server(self._answer, self.place.door(self.place.number))
        try:
            yield
        finally:
            server.close()

    async def metrics(self) -> bytes:
        """One page with the samples of all."""
        pages = await asyncio.gather(
            self._own_metrics(), *(self._metrics_of(number) for number in self._others)
        )
        return merged(pages)

    async def readiness(self) -> tuple[Readiness, Sequence[State]]:
        """How those that are up stand together, and how each stands by itself."""
        found = await asyncio.gather(*map(self._readiness_of, range(1, self.place.of + 1)))
        up = [one for one in found if isinstance(one, Readiness)]
        states: list[State] = [
            one if isinstance(one, str) else "ready" if one.ready else "not ready" for one in found
        ]
        return Readiness.of_all(up), states

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            if await reader.read(1) == _METRICS:
                writer.write(await self._own_metrics())
            else:
                writer.write(msgspec.json.encode(Readiness.of(self._services)))
            writer.close()
            await writer.wait_closed()

    async def _own_metrics(self) -> bytes:
        marked = Marked(self._services.metrics.registry, {"process": str(self.place.number)})
        return await asyncio.to_thread(generate_latest, marked)

    async def _metrics_of(self, number: int) -> bytes:
        try:
            return await self._ask(number, _METRICS)
        except (OSError, TimeoutError):
            return b""

    async def _readiness_of(self, number: int) -> Readiness | State:
        if number == self.place.number:
            return Readiness.of(self._services)
        try:
            return msgspec.json.decode(await self._ask(number, _READINESS), type=Readiness)
        except FileNotFoundError:
            return "starting"
        except TimeoutError:
            return "silent"
        except (OSError, msgspec.DecodeError):  # not there, or it ended at this moment
            return "gone"

    async def _ask(self, number: int, question: bytes) -> bytes:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(self.place.door(number))
            try:
                writer.write(question)
                return await reader.read()
            finally:
                writer.close()


class Marked(Collector):
    """A registry whose samples all have some more labels."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """All families."""
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in family.samples
            ]
            yield family


def merged(pages: Sequence[bytes]) -> bytes:
    """One page of several: the format has all samples of a family in one place."""
    families: dict[tuple[bytes, bytes], list[bytes]] = {}
    for page in pages:
        for family in _FAMILY.split(page)[1:]:
            meaning, kind, samples = family.split(b"\n", 2)
            families.setdefault((meaning, kind), []).append(samples)
    return b"".join(
        b"# HELP %b\n%b\n%b" % (meaning, kind, b"".join(samples))
        for (meaning, kind), samples in families.items()
    )

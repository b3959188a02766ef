"""How a service grows: what so many streams need of each part, and which part is full first. Pure.

The costs are measured (`benchmarks/scaling.json`), the rules are those of the program:

- A worker sends what one step of its engine has brought forth in one message for each reply queue
  that its streams lie on. So what a token costs depends on how many queues there are: many ingress
  processes behind one broker split a step into many messages.
- A process that is idle is woken for what comes; a busy one finds it when it looks next. Of what
  comes by chance the idle share of its time is woken for.
- Every worker tells every ingress process of itself, again and again, and is told of every client
  that leaves: that grows with the square of a service.

So a large service is several small ones, cells with a broker each, and how large a cell should be
is what this finds out. A step is taken to bring each of its streams one token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

ANNOUNCE_S: Final = 5.0
"""A worker's `announce_interval_s`."""

REPLY_QUEUES: Final = 64
"""Streams of a process that have a queue of their own: `--reply-queues`."""

SHARERS: Final = 256
"""Streams that share one of the others (docs/decisions.md, 52)."""

MAX_CONCURRENT: Final = 4096
"""Requests in flight in a process: `--max-concurrent`."""


WORTH_IT: Final = 1.1
"""Fewer cells may cost so much more: each is something to look after."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of CPU time that one part takes.

    Attributes:
        token_us: For each token.
        message_us: For each message of the broker, beside its tokens.
        wake_us: For each time that it has to be woken.
        request_us: For each request, beside its tokens.
    """

    token_us: float
    message_us: float
    wake_us: float
    request_us: float


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        source: On what, and when.
        stream_kib: Memory of an open stream, in all processes together.
        ingress_mib: Of an ingress process without streams.
        broker_mib: Of a broker without streams.
    """

    source: str
    ingress: Cost
    worker: Cost
    broker: Cost
    stream_kib: float
    ingress_mib: float
    broker_mib: float


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    Attributes:
        streams: Open at once.
        tokens_per_s: Of one stream.
        answer_tokens: Of one answer.
        slots: Streams of one worker.
        leaving: Part of the clients that leave before the end.
    """

    streams: int
    tokens_per_s: float = 30.0
    answer_tokens: int = 300
    slots: int = 64
    leaving: float = 0.05


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What it may stand on, and what that costs. None of this is measured.

    Attributes:
        full: Part of a core that may be in use on average, so that nobody waits long.
        broker_cores: The sizes of nodes that there are.
        nodes: Of a broker that outlives one of them; a service of one worker has one.
        hop: A message that comes in at one node and lies on another costs so much more.
        core_hour: Price.
        gib_hour: Price.
        gpu_hour: Price of what one worker stands on.
    """

    full: float = 0.6
    broker_cores: tuple[int, ...] = (2, 4, 8, 16)
    nodes: int = 3
    hop: float = 0.5
    core_hour: float = 0.04
    gib_hour: float = 0.005
    gpu_hour: float = 2.50


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What goes through one cell in a second.

    Attributes:
        messages: Of replies.
        notices: Copies of what workers tell, and are told.
    """

    streams: float
    workers: int
    tokens: float
    requests: float
    messages: float
    notices: float


def flow(load: Load, streams: float, processes: int) -> Flow:
    """So many of the streams over one broker, with so many ingress processes."""
    workers = math.ceil(streams / load.slots)
    tokens = streams * load.tokens_per_s
    requests = tokens / load.answer_tokens
    of_worker = streams / workers
    messages = touched(processes * queues_of(streams / processes), of_worker)
    return Flow(
        streams=streams,
        workers=workers,
        tokens=tokens,
        requests=requests,
        messages=workers * load.tokens_per_s * messages,
        notices=workers * (processes / ANNOUNCE_S + requests * load.leaving),
    )


def queues_of(streams: float) -> float:
    """How many reply queues the streams of one process lie on, if it stays busy."""
    return streams if streams <= REPLY_QUEUES else 1 + math.ceil(streams / SHARERS)


def touched(places: float, streams: float) -> float:
    """How many of the places have one of the streams, which are anywhere."""
    return places * (1 - (1 - 1 / places) ** streams) if places > 1 else min(places, streams)


def cpu_s(cost: Cost, *, tokens: float, messages: float, wakes: float, requests: float) -> float:
    """CPU seconds in a second; `wakes` are those of a part that is always idle."""
    busy = cost.token_us * tokens + cost.message_us * messages + cost.request_us * requests
    waking = cost.wake_us * wakes
    # With the load x it is woken (1 - x) of the times: x = busy + waking * (1 - x).
    return (busy + waking) / (1e6 + waking)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, and what is round it.

    Attributes:
        ingress: Part of a core that each process uses.
        broker: Cores that the broker uses, all nodes together.
        worker: Part of a core that a worker uses beside its engine.
    """

    flow: Flow
    processes: int
    ingress: float
    broker: float
    worker: float


def cell(constants: Constants, load: Load, ground: Ground, streams: float, processes: int) -> Cell:
    """How busy each part of a cell is."""
    seen = flow(load, streams, processes)
    steps = seen.workers * load.tokens_per_s
    nodes = ground.nodes if seen.workers > 1 else 1
    beyond = 1 + ground.hop * (nodes - 1) / nodes
    met = touched(processes, streams / seen.workers) / processes  # part of the steps, by each
    ingress = cpu_s(
        constants.ingress,
        tokens=seen.tokens / processes,
        messages=seen.messages / processes + seen.workers / ANNOUNCE_S,
        wakes=steps * met,
        requests=seen.requests / processes,
    )
    # Its nodes have several cores, and what wakes one of them wakes no other.
    broker = beyond * _unwoken(constants.broker, seen) + constants.broker.wake_us * steps / 1e6
    worker = cpu_s(
        constants.worker,
        tokens=seen.tokens / seen.workers,
        messages=(seen.messages + seen.notices) / seen.workers,
        wakes=load.tokens_per_s,
        requests=seen.requests / seen.workers,
    )
    return Cell(flow=seen, processes=processes, ingress=ingress, broker=broker, worker=worker)


def _unwoken(cost: Cost, seen: Flow) -> float:
    messages = seen.messages + seen.notices
    spent = cost.token_us * seen.tokens + cost.message_us * messages
    return (spent + cost.request_us * seen.requests) / 1e6


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a load needs.

    Attributes:
        cells: How many brokers, each with its own ingress processes and workers.
        cell: One of them.
        nodes: Of each broker.
        node_cores: Of each node.
        ingress_cores: Of all processes, with what they leave idle.
        memory_gib: Of ingress processes and brokers.
        hourly: Price of all but the workers.
        gpus_hourly: Price of the workers.
    """

    load: Load
    cells: int
    cell: Cell
    nodes: int
    node_cores: int
    ingress_cores: float
    memory_gib: float
    hourly: float
    gpus_hourly: float

    @property
    def workers(self) -> int:
        """Of all cells."""
        return math.ceil(self.load.streams / self.load.slots)

    @property
    def processes(self) -> int:
        """Of all cells."""
        return self.cells * self.cell.processes

    @property
    def broker_cores(self) -> int:
        """Of all cells."""
        return self.cells * self.nodes * self.node_cores

    @property
    def per_million_tokens(self) -> float:
        """Price of all but the workers."""
        return self.hourly / (self.load.streams * self.load.tokens_per_s * 3600) * 1e6


class TooMuch(ValueError):
    """No division into cells carries it."""


def plan(constants: Constants, load: Load, ground: Ground) -> Plan:
    """The fewest cells that carry a load for little more than the cheapest number of them.

    Raises:
        TooMuch: There is none.
    """
    most = math.ceil(load.streams / load.slots)
    found = [made for cells in _counts(most) if (made := _planned(constants, load, ground, cells))]
    if not found:
        raise TooMuch("one worker alone is more than a broker carries")
    dearest = WORTH_IT * min(made.hourly for made in found)
    return next(made for made in found if made.hourly <= dearest)


def _counts(most: int) -> Iterator[int]:
    """Of cells, from one to one for each worker; close together where that matters."""
    cells = 1
    while cells <= most:
        yield cells
        cells += max(1, cells // 8)


def _planned(constants: Constants, load: Load, ground: Ground, cells: int) -> Plan | None:
    streams = load.streams / cells
    one = smallest_cell(constants, load, ground, streams)
    if one is None:
        return None
    nodes = ground.nodes if one.flow.workers > 1 else 1
    needed = one.broker / ground.full / nodes
    sizes = [cores for cores in ground.broker_cores if cores >= needed]
    if not sizes:
        return None
    ingress_cores = cells * one.processes
    broker_cores = cells * nodes * sizes[0]
    memory_gib = (
        cells * one.processes * constants.ingress_mib / 1024
        + cells * nodes * constants.broker_mib / 1024
        + load.streams * constants.stream_kib / 2**20
    )
    workers = math.ceil(load.streams / load.slots)
    return Plan(
        load=load,
        cells=cells,
        cell=one,
        nodes=nodes,
        node_cores=sizes[0],
        ingress_cores=ingress_cores,
        memory_gib=memory_gib,
        hourly=(ingress_cores + broker_cores) * ground.core_hour + memory_gib * ground.gib_hour,
        gpus_hourly=workers * ground.gpu_hour,
    )


def smallest_cell(constants: Constants, load: Load, ground: Ground, streams: float) -> Cell | None:
    """With as few ingress processes as carry it; None where no number does."""
    processes = max(1, math.ceil(streams / MAX_CONCURRENT))
    while processes <= streams:
        made = cell(constants, load, ground, streams, processes)
        if made.ingress <= ground.full:
            return made
        # What a process has to do falls no faster than their number grows.
        processes = max(processes + 1, math.floor(processes * made.ingress / ground.full))
    return None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Where something is full.

    Attributes:
        what: It is.
        streams: So many fill it.
        remedy: What to do then.
    """

    what: str
    streams: int
    remedy: str


def limits(constants: Constants, load: Load, ground: Ground) -> Sequence[Limit]:
    """What is full when, the first one first; of each that all others have been given room."""

    def one(streams: float) -> Cell:
        return smallest_cell(constants, load, ground, streams) or cell(
            constants, load, ground, streams, max(1, math.floor(streams))
        )

    single = msgspec.structs.replace(ground, nodes=1)
    largest = max(ground.broker_cores)

    def of_one_process(streams: float) -> float:
        return cell(constants, load, ground, streams, 1).ingress / ground.full

    def of_a_small_broker(streams: float) -> float:
        carried = smallest_cell(constants, load, single, streams)
        return carried.broker / (2 * ground.full) if carried else math.inf

    def of_a_cluster(streams: float) -> float:
        return one(streams).broker / (ground.nodes * largest * ground.full)

    def of_the_job_queue(streams: float) -> float:
        # A quorum queue is one Erlang process: of what a request costs the broker all, at most.
        return one(streams).flow.requests * constants.broker.request_us / 1e6 / ground.full

    def of_notices(streams: float) -> float:
        seen = one(streams).flow
        return seen.notices / (0.2 * (seen.messages + seen.notices))

    found = (
        ("the core of one ingress process", of_one_process, "`--processes`, or more pods"),
        (
            f"`--max-concurrent` of one ingress process ({MAX_CONCURRENT})",
            lambda streams: streams / MAX_CONCURRENT,
            "`--processes`, or more pods; then the option",
        ),
        ("a broker of one node with 2 cores", of_a_small_broker, "a larger node"),
        (
            f"a broker of {ground.nodes} nodes with {largest} cores",
            of_a_cluster,
            "a second cell: a broker of its own, with ingress processes and workers",
        ),
        (
            "the job queue of one model, which is one core's work",
            of_the_job_queue,
            "a second cell, or the model under two names",
        ),
        (
            "a fifth of all messages are notices between workers and ingress processes",
            of_notices,
            "a second cell",
        ),
    )
    made = [Limit(what=what, streams=_full_at(use), remedy=remedy) for what, use, remedy in found]
    return sorted((limit for limit in made if limit.streams), key=lambda limit: limit.streams)


_MOST_STREAMS: Final = 1_000_000


def _full_at(use: Callable[[float], float]) -> int:
    """The number of streams that fill something; 0 if none here does."""
    if use(_MOST_STREAMS) < 1:
        return 0
    low, high = 0, _MOST_STREAMS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if use(middle) >= 1 else (middle, high)
    return high

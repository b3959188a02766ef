"""One moment of a deployment, put together for the page: plain values in, JSON out. Pure.

Every process that was heard of adds its part; workers announce themselves, batches are the store's.
Requests of a process are its own to tell, so those of one that is silent are missing, and the page
says of which processes it speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import orjson

from ingress.console.accounts import MOST_ACCOUNTS, nearness
from ingress.console.history import SILENT_S, Gone, History, Sample, heard_at
from ingress.console.status import AccountUse, Errors, ErrorSeen, Held, PodStatus, Waiting
from schemas.batch import UNFINISHED, Batch
from schemas.job import JobClass
from schemas.model_card import ModelCard, WorkerInfo

_MOST_REQUESTS: Final = 300
_EXAMPLES: Final = 8
_T = TypeVar("_T")


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to be shown.

    Attributes:
        at: Unix seconds.
        statuses: Of the processes, that of this one first.
        cards: Of the served models.
        known: Ids of models that are expected, whether anything is known about them or not.
        batches: Unfinished ones, and some that have ended lately; None where there are none.
        batches_away: They could not be read.
        sample, gone: See `History`.
        keys_needed: Requests need an API key.
    """

    at: float
    statuses: Sequence[PodStatus]
    workers: Sequence[WorkerInfo]
    cards: Sequence[ModelCard]
    known: Sequence[str]
    batches: Sequence[Batch] | None
    batches_away: bool
    sample: Sample
    gone: Sequence[Gone]
    keys_needed: bool


def snapshot(moment: Moment, history: History) -> bytes:
    """What the page shows from now on."""
    first_tokens = [[first.at, first.seconds, first.model] for first in history.fresh]
    return _encode({**_state(moment), "sample": moment.sample, "first_tokens": first_tokens})


def past(history: History) -> bytes:
    """What the page shows of before."""
    return _encode(
        {
            "samples": list(history.samples),
            "first_tokens": [
                [first.at, first.seconds, first.model] for first in history.first_tokens
            ],
        }
    )


def _encode(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _state(moment: Moment) -> dict[str, Any]:
    statuses = moment.statuses
    waiting = _waiting(statuses)
    requests = [
        {"pod": status.pod, **_plain(request)} for status in statuses for request in status.requests
    ]
    requests.sort(key=lambda one: (one["job_class"] == "batch", -one["age_s"]))
    omitted = sum(status.omitted for status in statuses) + max(0, len(requests) - _MOST_REQUESTS)
    return {
        "at": moment.at,
        "pod": statuses[0].pod,
        "release": statuses[0].release,
        "pods": [_pod(status, moment.at) for status in statuses],
        "keys_needed": moment.keys_needed,
        "models": _models(moment, waiting),
        "workers": _workers(moment),
        "gone": moment.gone,
        "queues": waiting,
        "requests": requests[:_MOST_REQUESTS],
        "requests_omitted": omitted,
        "batches": None if moment.batches is None else [_batch(one) for one in moment.batches],
        "batches_away": moment.batches_away,
        "errors": _errors(statuses),
        "accounts": _accounts(statuses),
    }


def _pod(status: PodStatus, now: float) -> dict[str, Any]:
    return {
        "pod": status.pod,
        "process": status.process,
        "release": status.release,
        "up_s": max(0.0, now - status.started_at),
        "in_flight": status.in_flight,
        "waiting": sum(waiting.count for waiting in status.waiting),
        "connected": status.connected,
        "blocked": status.blocked,
        "shutting_down": status.shutting_down,
    }


def _grouped(items: Iterable[_T], key: Callable[[_T], Any]) -> dict[Any, list[_T]]:
    groups: dict[Any, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _waiting(statuses: Sequence[PodStatus]) -> list[Waiting]:
    """By model and class, over all processes."""
    told = (waiting for status in statuses for waiting in status.waiting)
    groups = _grouped(told, lambda one: (one.model, one.job_class))
    together = []
    for (model, job_class), group in sorted(groups.items()):
        rates = [one.rate for one in group if one.rate is not None]
        together.append(
            Waiting(
                model=model,
                job_class=job_class,
                count=sum(one.count for one in group),
                oldest_s=max(one.oldest_s for one in group),
                rate=sum(rates) if rates else None,
            )
        )
    return together


def _models(moment: Moment, waiting: Sequence[Waiting]) -> list[dict[str, Any]]:
    cards = {card.id.casefold(): card for card in moment.cards}
    names = [card.id for card in moment.cards]
    names += [name for name in moment.known if name.casefold() not in cards]
    return [
        {
            **_model(name, cards.get(name.casefold())),
            **_served([one for one in moment.workers if one.card.id == name]),
            "waiting": {
                kind: sum(
                    one.count for one in waiting if one.model == name and one.job_class == kind
                )
                for kind in _CLASSES
            },
        }
        for name in names
    ]


_CLASSES: Final[tuple[JobClass, ...]] = ("interactive", "batch")


def _model(name: str, card: ModelCard | None) -> dict[str, Any]:
    if card is None:
        return {"id": name, "told": False}
    capabilities = card.capabilities
    reasoning = capabilities.reasoning
    flags = ("vision", "tools", "json_schema", "regex", "grammar", "completions", "logprobs")
    return {
        "id": card.id,
        "told": True,
        "aliases": card.aliases,
        "context_length": card.context_length,
        "max_output_tokens": card.max_output_tokens,
        "zdr": card.zdr_supported,
        "capabilities": [flag for flag in flags if getattr(capabilities, flag)],
        "efforts": reasoning.efforts if reasoning is not None else [],
        "effort": reasoning.default if reasoning is not None else None,
    }


def _served(workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    taking = [worker for worker in workers if not worker.draining]
    return {
        "state": "serving" if taking else "draining" if workers else "no worker",
        "workers": len(workers),
        "slots": sum(worker.slots for worker in taking),
    }


def _workers(moment: Moment) -> list[dict[str, Any]]:
    held = [one for status in moment.statuses for one in status.held]
    return [
        _worker(worker, moment.at, [one for one in held if one.worker == worker.worker_id])
        for worker in sorted(moment.workers, key=lambda one: (one.card.id, one.worker_id))
    ]


def _worker(worker: WorkerInfo, now: float, held: Sequence[Held]) -> dict[str, Any]:
    """What it has is counted by who asked it: what it tells itself is seconds old."""
    silent_s = max(0.0, now - heard_at(worker))
    state = "draining" if worker.draining else "silent" if silent_s > SILENT_S else "well"
    return {
        "id": worker.worker_id,
        "model": worker.card.id,
        "engine": worker.engine,
        "state": state,
        "slots": worker.slots,
        "live": sum(one.live for one in held),
        "batch": sum(one.batch for one in held),
        "floor": worker.batch_floor,
        "heard_s": silent_s,
    }


def _batch(batch: Batch) -> dict[str, Any]:
    return {
        "id": batch.batch_id,
        "account": batch.account,
        "shape": batch.shape,
        "endpoint": batch.endpoint,
        "model": batch.model,
        "status": batch.status,
        "ended": batch.status not in UNFINISHED,
        "created_at": batch.created_at,
        "began_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "counts": batch.counts,
        "output_tokens": batch.usage.output_tokens,
    }


def _errors(statuses: Sequence[PodStatus]) -> list[Errors]:
    """By code, over all processes, the latest first."""
    told = (errors for status in statuses for errors in status.errors)
    groups = _grouped(told, lambda one: (one.code, one.status))
    together = [
        Errors(
            code=code,
            status=status,
            count=sum(one.count for one in group),
            last=_latest(seen for one in group for seen in one.last),
        )
        for (code, status), group in groups.items()
    ]
    return sorted(together, key=lambda one: one.last[0].at, reverse=True)


def _latest(seen: Iterable[ErrorSeen]) -> tuple[ErrorSeen, ...]:
    return tuple(sorted(seen, key=lambda one: one.at, reverse=True)[:_EXAMPLES])


def _accounts(statuses: Sequence[PodStatus]) -> list[AccountUse]:
    """As the process sees each that saw the most of it; refusals are each process's own."""
    told = (account for status in statuses for account in status.accounts)
    groups = _grouped(told, lambda one: one.account)
    together = [
        msgspec.structs.replace(max(group, key=nearness), refused=sum(one.refused for one in group))
        for group in groups.values()
    ]
    return sorted(together, key=nearness, reverse=True)[:MOST_ACCOUNTS]

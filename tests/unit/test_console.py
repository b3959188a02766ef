"""What a console remembers, and how it puts together what several processes tell."""

from typing import Any

import orjson
import pytest

from ingress.accounts.account import Budget, Limits
from ingress.console.accounts import near_limits
from ingress.console.activity import RECENT_S, Activity, Live
from ingress.console.history import SILENT_S, History
from ingress.console.snapshot import Moment, past, snapshot
from ingress.console.status import (
    MOST_REQUESTS,
    AccountUse,
    Errors,
    ErrorSeen,
    FirstToken,
    Held,
    LimitUse,
    PodStatus,
    Request,
    Tokens,
    UnknownStatus,
    Waiting,
    decode_status,
    encode_status,
)
from ingress.generation import Generation
from ingress.limits.state import AccountState, Hold, Lease, Seen, Spending
from ingress.limits.window import Window
from ingress.settings import TimeLimits
from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart
from schemas.model_card import ModelCard, WorkerInfo
from schemas.sampling import OutputLimit, SamplingParams
from schemas.transport.memory import MemoryTransport
from workers.settings import WorkerSettings

NOW = 1_760_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def status(pod: str = "pod-1", at: float = NOW, **changes: Any) -> PodStatus:
    return PodStatus(
        **{
            "pod": pod,
            "process": "ingress",
            "release": "1.0",
            "at": at,
            "started_at": NOW - 60,
            "connected": True,
            "blocked": False,
            "shutting_down": False,
            "in_flight": 0,
            "requests": (),
            "omitted": 0,
            "waiting": (),
            "held": (),
            "tokens": (),
            "first_tokens": (),
            "errors": (),
            "accounts": (),
            **changes,
        }
    )


def tokens(output: int, job_class: str = "interactive") -> tuple[Tokens, ...]:
    return (Tokens(model="m", job_class=job_class, input=2 * output, output=output),)


def worker(name: str = "w-1", heard: float = NOW, **changes: Any) -> WorkerInfo:
    card = ModelCard(id="m", context_length=1000)
    return WorkerInfo(
        worker_id=name,
        card=card,
        engine="e",
        slots=8,
        sent_at=heard + 5,
        clock_ahead_s=5,
        **changes,
    )


def request(name: str, pod: str, **changes: Any) -> Request:
    return Request(
        **{
            "id": name,
            "dialect": "chat",
            "model": "m",
            "job_class": "interactive",
            "account": None,
            "stream": True,
            "zdr": False,
            "phase": "decode",
            "age_s": 1.0,
            "waits_s": None,
            "ttft_s": 0.5,
            "input_tokens": 1,
            "output_tokens": 2,
            "worker": "w-1",
            "attempt": 1,
            **changes,
        }
    )


# --- History --------------------------------------------------------------------------------------


def test_rates_are_of_all_processes_and_outlast_one_that_is_late() -> None:
    history = History()
    first = (status("a", tokens=tokens(100)), status("b", tokens=tokens(10, "batch")))
    assert history.move(NOW, first, ()).live == 0
    late = status("b", tokens=tokens(10, "batch"))
    sample = history.move(NOW + 2, (status("a", NOW + 2, tokens=tokens(150)), late), ())
    assert (sample.live, sample.batch, sample.prompt) == (25, 0, 50)
    told = (
        status("a", NOW + 2, tokens=tokens(150)),
        status("b", NOW + 4, tokens=tokens(50, "batch")),
    )
    sample = history.move(NOW + 4, told, ())
    assert (sample.live, sample.batch) == (25, 10)


def test_a_process_that_begins_anew_or_goes_has_no_negative_rate() -> None:
    history = History()
    history.move(NOW, (status(tokens=tokens(100)),), ())
    assert history.move(NOW + 1, (status(at=NOW + 1, tokens=tokens(5)),), ()).live == 0
    assert history.move(NOW + 2, (), ()).live == 0


def test_a_first_token_is_shown_once_and_then_for_ten_minutes() -> None:
    history = History()
    first = FirstToken("req_1", NOW, 0.2, "m")
    history.move(NOW, (status(first_tokens=(first,)),), ())
    assert [one.id for one in history.fresh] == ["req_1"]
    again = (first, FirstToken("req_2", NOW, 0.3, "m"))
    history.move(NOW + 1, (status(first_tokens=again),), ())
    assert [one.id for one in history.fresh] == ["req_2"]
    assert [one.id for one in history.first_tokens] == ["req_1", "req_2"]
    history.move(NOW + 602, (status(),), ())
    assert not history.first_tokens
    assert len(history.samples) == 1


def test_a_killed_worker_is_seen_within_fifteen_seconds() -> None:
    interval_s = WorkerSettings.model_fields["announce_interval_s"].default
    assert interval_s < SILENT_S  # or a worker that is well would seem silent
    moments_s = 1.0
    assert SILENT_S + moments_s < 15


@pytest.mark.parametrize(
    ("silent_s", "draining", "how"),
    [(1, False, "left"), (SILENT_S + 1, False, "lost"), (SILENT_S + 1, True, "left")],
)
def test_a_worker_that_fell_silent_was_lost_and_another_has_left(
    silent_s: float, draining: bool, how: str
) -> None:
    history = History()
    history.move(NOW, (), (worker(heard=NOW - silent_s, draining=draining), worker("w-2")))
    history.move(NOW + 1, (), (worker("w-2"),))
    (gone,) = history.gone
    assert (gone.worker, gone.how) == ("w-1", how)
    history.move(NOW + 2, (), (worker("w-2"), worker()))
    assert not history.gone  # it has come back


# --- Moments --------------------------------------------------------------------------------------


def shown(history: History, *statuses: PodStatus, **changes: Any) -> dict[str, Any]:
    workers = changes.pop("workers", (worker(),))
    moment = Moment(
        **{
            "at": NOW,
            "statuses": statuses,
            "workers": workers,
            "cards": (ModelCard(id="m", context_length=1000),),
            "known": ("M", "other"),
            "batches": None,
            "batches_away": False,
            "sample": history.move(NOW, statuses, workers),
            "gone": tuple(history.gone),
            "keys_needed": False,
            **changes,
        }
    )
    found: dict[str, Any] = orjson.loads(snapshot(moment, history))
    return found


def test_what_several_processes_tell_is_put_together() -> None:
    seen = ErrorSeen(at=NOW - 1, request_id="r", dialect="chat", model=None, account=None)
    use = LimitUse(kind="requests", unit="per minute", used=9, limit=10)
    less = LimitUse(kind="requests", unit="per minute", used=8, limit=10)
    one = status(
        "a",
        requests=(request("req_1", "a"), request("req_2", "a", job_class="batch", age_s=9)),
        waiting=(Waiting(model="m", job_class="interactive", count=2, oldest_s=1, rate=0.5),),
        held=(Held(worker="w-1", live=2, batch=1),),
        errors=(Errors(code="x", status=500, count=3, last=(seen,)),),
        accounts=(AccountUse(account="acme", name="", refused=1, uses=(less,)),),
    )
    two = status(
        "b",
        requests=(request("req_3", "b", age_s=5),),
        omitted=4,
        waiting=(
            Waiting(model="m", job_class="interactive", count=1, oldest_s=7),
            Waiting(model="m", job_class="batch", count=6, oldest_s=99),
        ),
        held=(Held(worker="w-1", live=3, batch=0),),
        errors=(Errors(code="x", status=500, count=1, last=(seen,)),),
        accounts=(AccountUse(account="acme", name="", refused=2, uses=(use,)),),
    )
    now = shown(History(), one, two)
    assert [(r["id"], r["pod"]) for r in now["requests"]] == [
        ("req_3", "b"),
        ("req_1", "a"),
        ("req_2", "a"),
    ]
    assert now["requests_omitted"] == 4
    batch, live = now["queues"]
    assert (live["count"], live["oldest_s"], live["rate"]) == (3, 7, 0.5)
    assert (batch["count"], batch["oldest_s"]) == (6, 99)
    (told,) = now["workers"]
    assert (told["live"], told["batch"], told["heard_s"]) == (5, 1, 0)
    assert [(model["id"], model["state"]) for model in now["models"]] == [
        ("m", "serving"),
        ("other", "no worker"),
    ]
    assert now["errors"][0]["count"] == 4
    (account,) = now["accounts"]
    assert account["refused"] == 3
    assert account["uses"][0]["used"] == 9


@pytest.mark.parametrize(
    ("workers", "state"),
    [
        ((), "no worker"),
        ((worker(draining=True),), "draining"),
        ((worker(draining=True), worker("w-2")), "serving"),
    ],
)
def test_a_model_is_served_by_a_worker_that_stays(
    workers: tuple[WorkerInfo, ...], state: str
) -> None:
    assert shown(History(), status(), workers=workers)["models"][0]["state"] == state


def test_a_worker_that_says_nothing_is_silent() -> None:
    told = shown(History(), status(), workers=(worker(heard=NOW - SILENT_S - 1),))["workers"]
    assert told[0]["state"] == "silent"


def test_the_past_is_told_to_who_comes_later() -> None:
    history = History()
    history.move(NOW, (status(first_tokens=(FirstToken("r", NOW, 0.2, "m"),)),), ())
    told = orjson.loads(past(history))
    assert told["first_tokens"] == [[NOW, 0.2, "m"]]
    assert [sample[0] for sample in told["samples"]] == [NOW]


def test_a_status_comes_back_as_it_was_and_another_version_is_not_believed() -> None:
    told = status(requests=(request("r", "a"),), tokens=tokens(5))
    assert decode_status(encode_status(told)) == told
    for body in (
        b"",
        b"[]",
        b"\xff",
        b"[" * 5000,
        encode_status(told).replace(b'"version":1', b'"version":2'),
    ):
        with pytest.raises(UnknownStatus):
            decode_status(body)


# --- Accounts -------------------------------------------------------------------------------------


def test_accounts_near_a_limit_come_before_those_that_are_only_refused() -> None:
    window, part = Window(), Window().part(NOW)
    hold = Hold(in_flight=3, tokens={part: 200}, microcents=500_000)
    state = AccountState(
        requests={part: 8, part - 200: 50},
        tokens={part: 700},
        leases={"p": Lease(NOW + 5, 1, hold), "q": Lease(NOW - 1, 1, hold)},
        spending={"total": Spending(0, 99_000_000)},
    )
    seen = (
        Seen("full", Limits(tokens_per_minute=1000, concurrency=30), state, NOW),
        Seen("idle", Limits(requests_per_minute=100), state, NOW),
        Seen("refused", Limits(requests_per_minute=100), state, NOW),
        Seen("spent", Limits(budget=Budget(cents=100, period="total")), state, NOW),
    )
    found = near_limits(seen, {"refused": 2, "unknown": 1}, {"full": "Full Ltd"}, window)
    assert [one.account for one in found] == ["spent", "full", "refused"]
    spent, full, refused = found
    assert (spent.uses[0].kind, spent.uses[0].used) == ("budget", 99.5)
    assert full.name == "Full Ltd"
    uses = {use.kind: use.used for use in full.uses}
    assert uses == {"tokens": 900, "concurrency": 3}  # what has lapsed or is old does not count
    assert (refused.refused, refused.uses[0].used) == (2, 8)


# --- Activity -------------------------------------------------------------------------------------


def job(number: int) -> Job:
    prompt = ChatPrompt(messages=(Message(role="user", parts=(TextPart(text="a secret"),)),))
    return Job(
        job_id=f"job-{number}",
        request_id=f"req-{number}",
        model="m",
        prompt=prompt,
        sampling=SamplingParams(limit=OutputLimit(max_tokens=8)),
        created_at=NOW,
        deadline=NOW + 60,
        queue_deadline=NOW + 60,
    )


def live(number: int) -> Live:
    generation = Generation(MemoryTransport().dispatcher(), job(number), TimeLimits())
    return Live(generation, dialect="chat", account="acme", stream=True, began_at=NOW)


async def test_requests_are_known_from_their_beginning_to_their_end() -> None:
    activity = Activity(clock=Clock())
    requests = [live(number) for number in range(MOST_REQUESTS + 2)]
    for one in requests:
        activity.begin(one)
    shown, omitted = activity.requests()
    assert len(shown) == MOST_REQUESTS
    assert omitted == 2
    assert shown[0].id == "req-0"
    (waiting,) = activity.waiting()
    assert (waiting.model, waiting.count) == ("m", MOST_REQUESTS + 2)
    for one in requests:
        activity.end(one)
        activity.end(one)
    assert activity.requests() == ((), 0)
    assert activity.waiting() == ()


def test_errors_are_counted_for_ten_minutes_with_a_few_examples() -> None:
    clock = Clock()
    activity = Activity(clock=clock)

    def fail(code: str, status: int, number: int, account: str | None = None) -> None:
        activity.failed(code, status, request_id=f"req-{number}", dialect="chat", account=account)

    for number in range(20):
        fail("rate_limit_exceeded", 429, number, "acme")
        clock.now += 1
    fail("x", 500, 99)
    counts = {errors.code: errors.count for errors in activity.errors()}
    assert counts == {"rate_limit_exceeded": 20, "x": 1}
    last = activity.errors()[0].last
    assert [seen.request_id for seen in last[:2]] == ["req-19", "req-18"]
    assert len(last) == 8
    assert activity.refused() == {"acme": 20}
    clock.now += RECENT_S / 2
    fail("x", 500, 100)
    clock.now += RECENT_S / 2 + 10
    assert {errors.code: errors.count for errors in activity.errors()} == {"x": 1}
    assert activity.refused() == {}
    clock.now += RECENT_S
    assert activity.errors() == ()

"""Who may wait, and when those who may not should come back. The clock is the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ingress.backlog import STANDING_S, Backlog, Overload, Place


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Model:
    """A backlog with hands on its clock and chance."""

    max_requests: int = 100
    max_tokens: int = 1_000_000
    max_wait_s: float = 60.0
    clock: Clock = field(default_factory=Clock)
    chance: float = 0.0
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backlog = Backlog(
            max_requests=self.max_requests,
            max_tokens=self.max_tokens,
            max_wait_s=self.max_wait_s,
            clock=self.clock,
            on_accepted=self.waits.append,
            chance=lambda: self.chance,
        )
        self.places: list[Place] = []

    def queue(self, count: int, tokens: int = 100) -> None:
        for _ in range(count):
            place = Place(self.backlog, tokens)
            place.take()
            self.places.append(place)

    def drain(self, count: int, *, every_s: float) -> None:
        """Workers accept `count` requests, one by one, the oldest first."""
        for _ in range(count):
            self.clock.now += every_s
            self.places.pop(0).leave(accepted=True)

    def refusal(self, tokens: int = 100, free_slots: int = 0) -> Overload:
        with pytest.raises(Overload) as caught:
            self.backlog.check(tokens, free_slots=free_slots)
        return caught.value


@pytest.mark.parametrize("every_s", [0.05, 0.5, 2.0])
def test_the_rate_is_that_at_which_a_standing_queue_drains(every_s: float) -> None:
    model = Model()
    model.queue(60)
    model.drain(50, every_s=every_s)
    rate = model.backlog.rate()
    assert rate == pytest.approx(1 / every_s, rel=0.15)


def test_free_workers_say_nothing_about_the_rate() -> None:
    model = Model()
    for _ in range(100):
        model.queue(1)
        model.drain(1, every_s=0.001)
        model.clock.now += 1
    assert model.backlog.rate() is None


def test_idle_time_does_not_slow_the_rate() -> None:
    model = Model()
    model.queue(20)
    model.drain(20, every_s=1.0)
    before = model.backlog.rate()
    model.clock.now += 20
    assert model.backlog.rate() == pytest.approx(before)


def test_a_queue_that_stands_still_slows_the_rate() -> None:
    model = Model()
    model.queue(40)
    model.drain(20, every_s=1.0)
    before = model.backlog.rate()
    model.clock.now += 60
    after = model.backlog.rate()
    assert before is not None
    assert after is not None
    assert after < before / 4


def test_those_who_leave_by_themselves_are_not_counted_as_accepted() -> None:
    model = Model()
    model.queue(10)
    model.clock.now += 5
    for place in model.places:
        place.leave(accepted=False)
    assert model.backlog.rate() is None
    assert model.waits == []
    assert len(model.backlog) == model.backlog.tokens == 0


@pytest.mark.rule("overload.expected-wait")
def test_a_wait_that_would_be_too_long_is_refused_at_once() -> None:
    model = Model(max_wait_s=10)
    model.queue(30)
    model.drain(10, every_s=1.0)
    error = model.refusal()  # 20 wait at one a second
    assert error.reason == "expected_wait"
    assert error.retry_after_s is not None
    assert 9 <= error.retry_after_s <= 12
    model.drain(11, every_s=1.0)
    model.backlog.check(100, free_slots=0)


@pytest.mark.rule("overload.bounds")
def test_the_number_that_waits_is_bounded() -> None:
    model = Model(max_requests=20)
    model.queue(29)
    model.drain(9, every_s=2.0)
    error = model.refusal()
    assert error.reason == "queue_length"
    assert error.retry_after_s == 2  # one place, at half a request a second
    model.drain(1, every_s=2.0)
    model.backlog.check(100, free_slots=0)


@pytest.mark.rule("overload.bounds")
def test_the_tokens_that_wait_are_bounded() -> None:
    model = Model(max_tokens=1_000)
    model.queue(14)
    model.drain(5, every_s=1.0)
    model.backlog.check(100, free_slots=0)
    error = model.refusal(tokens=500)
    assert error.reason == "queue_tokens"
    assert error.retry_after_s is not None
    assert 4 <= error.retry_after_s <= 5  # 400 too many, at 100 a second


@pytest.mark.rule("overload.bounds")
def test_one_may_always_wait_whatever_its_size() -> None:
    model = Model(max_requests=1, max_tokens=10, max_wait_s=0.001)
    model.backlog.check(1_000_000, free_slots=0)
    model.queue(1, tokens=1_000_000)
    model.refusal(tokens=1)


@pytest.mark.rule("overload.free-slots")
def test_nothing_is_refused_while_workers_have_free_slots() -> None:
    model = Model(max_requests=3, max_tokens=10, max_wait_s=0.001)
    model.queue(5)
    model.drain(1, every_s=1.0)
    model.backlog.check(1_000, free_slots=5)
    model.refusal(free_slots=4)  # those that wait will have them


@pytest.mark.rule("overload.measured")
def test_without_a_measurement_only_the_bounds_count() -> None:
    model = Model(max_requests=50, max_wait_s=0.001)
    model.queue(49)
    model.clock.now += 30
    model.backlog.check(100, free_slots=0)
    model.queue(1)
    assert model.refusal().retry_after_s == 5  # the default of the error
    assert model.backlog.retry_after_s() is None


@pytest.mark.rule("overload.retry-after")
@pytest.mark.parametrize(
    ("waiting", "every_s", "least", "most"), [(9, 0.01, 1, 1), (9, 90, 60, 60)]
)
def test_the_time_to_come_back_is_between_a_second_and_a_minute(
    waiting: int, every_s: float, least: int, most: int
) -> None:
    model = Model()
    model.queue(waiting + 90)
    model.drain(90, every_s=every_s)
    seconds = model.backlog.retry_after_s()
    assert seconds is not None
    assert least <= seconds <= most


@pytest.mark.rule("overload.retry-after")
def test_those_refused_together_do_not_come_back_together() -> None:
    model = Model()
    model.queue(60)
    model.drain(30, every_s=1.0)
    seconds = set()
    for tenth in range(10):
        model.chance = tenth / 10
        seconds.add(model.backlog.retry_after_s())
    told = [second for second in seconds if second is not None]
    assert min(told) >= 29
    assert max(told) <= 46
    assert len(set(told)) >= 8


def test_a_place_is_taken_and_left_once_for_each_wait() -> None:
    model = Model()
    place = Place(model.backlog, 7)
    for _ in range(2):  # an attempt that was lost waits again
        place.take()
        place.take()
        assert (len(model.backlog), model.backlog.tokens) == (1, 7)
        model.clock.now += STANDING_S / 2
        place.leave(accepted=True)
        place.leave(accepted=True)
        assert (len(model.backlog), model.backlog.tokens) == (0, 0)
    assert model.waits == [pytest.approx(STANDING_S / 2)] * 2

"""What is known of models, from the configuration file and from workers."""

import msgspec
import pytest

from ingress.catalog import Catalog
from ingress.config import ModelConfig
from schemas.errors import ModelNotFound, ModelUnavailable
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport, WorkerInfo
from schemas.transport.memory import MemoryTransport

TOLD = ModelCard(
    id="Big",
    context_length=8192,
    vocab_size=1000,
    capabilities=Capabilities(
        tools=True,
        regex=True,
        reasoning=ReasoningSupport(
            efforts=("none", "high"), default="high", control="native_effort"
        ),
    ),
)


async def catalog(
    *configured: dict[str, object], told: tuple[ModelCard, ...] = (), known: tuple[str, ...] = ()
) -> Catalog:
    """A catalogue over a transport on which workers have told these cards."""
    memory = MemoryTransport()
    for number, card in enumerate(told):
        source = memory.job_source(model=card.id, slots=1)
        await source.announce(
            WorkerInfo(worker_id=f"w{number}", card=card, engine="scripted", slots=1)
        )
    return Catalog(
        memory.dispatcher(),
        configured=[ModelConfig.model_validate(fields) for fields in configured],
        known_ids=known,
    )


@pytest.mark.rule("models.configured-fields")
async def test_only_what_is_written_changes() -> None:
    found = await catalog(
        {
            "id": "big",
            "aliases": ["claude-big"],
            "max_output_tokens": 100,
            "capabilities": {"regex": False, "reasoning": {"efforts": ["low"], "default": "low"}},
            "pricing": {"input_cents_per_million": 1, "output_cents_per_million": 2},
        },
        told=(TOLD,),
    )
    (card,) = found.models()
    assert card.id == "Big"  # the workers' spelling: it names their queue
    assert card.aliases == ("claude-big",)
    assert card.max_output_tokens == 100
    assert card.context_length == 8192
    assert card.vocab_size == 1000
    assert card.capabilities.tools
    assert not card.capabilities.regex
    reasoning = card.capabilities.reasoning
    assert reasoning == ReasoningSupport(efforts=("low",), default="low", control="native_effort")
    assert card.pricing is not None
    assert card.pricing.output_cents_per_million == 2
    assert found.lookup("CLAUDE-BIG") == card
    assert found.available(card)


@pytest.mark.rule("models.configured-fields")
async def test_reasoning_can_be_taken_away() -> None:
    found = await catalog({"id": "big", "capabilities": {"reasoning": None}}, told=(TOLD,))
    assert found.lookup("big").capabilities.reasoning is None
    untouched = await catalog({"id": "big"}, told=(TOLD,))
    assert untouched.lookup("big") == TOLD


async def test_without_a_worker_the_window_must_be_written() -> None:
    found = await catalog({"id": "a", "aliases": ["b"]}, {"id": "c", "context_length": 5})
    assert [card.id for card in found.models()] == ["c"]
    for name in ("a", "B"):
        with pytest.raises(ModelUnavailable):
            found.lookup(name)
    with pytest.raises(ModelNotFound):
        found.lookup("d")


async def test_the_file_comes_first_and_then_the_workers() -> None:
    other = ModelCard(id="Other", context_length=5)
    found = await catalog({"id": "z", "context_length": 5}, {"id": "big"}, told=(other, TOLD))
    assert [card.id for card in found.models()] == ["z", "Big", "Other"]


async def test_an_id_comes_before_an_alias() -> None:
    other = ModelCard(id="Other", context_length=5)
    found = await catalog({"id": "big", "aliases": ["other"]}, told=(TOLD, other))
    assert found.lookup("OTHER").id == "Other"


async def test_a_known_model_is_unavailable_and_not_unknown() -> None:
    found = await catalog(known=("Soon",))
    with pytest.raises(ModelUnavailable):
        found.lookup("soon")
    with pytest.raises(ModelNotFound):
        found.lookup("later")


@pytest.mark.rule("overload.clocks")
@pytest.mark.parametrize(
    ("clocks", "ahead_s"), [((), 0), ((-30.0,), 0), ((-30.0, 12.0, 3.0), 12.0)]
)
async def test_how_far_the_clock_of_a_worker_is_ahead(
    clocks: tuple[float, ...], ahead_s: float
) -> None:
    memory = MemoryTransport()
    other = ModelCard(id="other", context_length=1)
    told = [(TOLD, clock) for clock in clocks] + [(other, 999.0)]
    for number, (card, clock) in enumerate(told):
        await memory.job_source(model=card.id, slots=1).announce(
            WorkerInfo(worker_id=f"w{number}", card=card, engine="e", slots=1, clock_ahead_s=clock)
        )
    assert Catalog(memory.dispatcher()).clock_ahead_s(TOLD) == ahead_s


@pytest.mark.rule("sharing.free-slots")
@pytest.mark.parametrize(
    ("told", "free"),
    [
        ({"running": 3}, 5),
        ({"running": 8, "running_batch": 8}, 8),
        ({"running": 8, "running_batch": 6}, 6),
        ({"running": 8, "running_batch": 8, "batch_floor": 2}, 6),
        ({"running": 9, "running_batch": 0}, 0),
        ({"running": 8, "running_batch": 8, "draining": True}, 0),
    ],
)
async def test_slots_that_batch_work_holds_are_free_for_live_requests(
    told: dict[str, int], free: int
) -> None:
    memory = MemoryTransport()
    source = memory.job_source(model="Big", slots=8)
    info = WorkerInfo(worker_id="w", card=TOLD, engine="scripted", slots=8)
    await source.announce(msgspec.structs.replace(info, **told))
    assert Catalog(memory.dispatcher()).free_slots(TOLD) == free

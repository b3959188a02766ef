"""A model card: what is known about one served model.

A worker announces what is a fact of the model it loaded; the catalogue adds what the operator
decides. Times are Unix seconds, lengths are tokens.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.job import Effort


class ReasoningSupport(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning levels of a model.

    Attributes:
        efforts: Supported levels, in rising order.
        default: The level when a request does not say.
        control: How the level reaches the model: as a chat-template variable, or as the engine's
            own effort parameter.
    """

    efforts: tuple[Effort, ...]
    default: Effort
    control: str = "chat_template"


class EngineAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the engine's own options callers may use; none unless the operator opens them.

    Attributes:
        logit_processors: Code of the caller's that runs in the worker.
        hidden_states: Which of them may be reported: `last`, `all`.
        routed_experts: They may be reported.
        adapters: Names of the LoRA adapters to choose from.
        priorities: The lowest and the highest rank; equal where there is no such order.
    """

    logit_processors: bool = False
    hidden_states: tuple[Literal["last", "all"], ...] = ()
    routed_experts: bool = False
    adapters: tuple[str, ...] = ()
    priorities: tuple[int, int] = (0, 0)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What requests may ask of a model."""

    vision: bool = False
    tools: bool = False
    n: bool = True
    logprobs: bool = True
    json_object: bool = True
    json_schema: bool = True
    regex: bool = False
    grammar: bool = False
    completions: bool = False
    engine: EngineAccess = EngineAccess()
    reasoning: ReasoningSupport | None = None


class Pricing(msgspec.Struct, frozen=True, kw_only=True):
    """What tokens cost: whole cents per million, and for cached input also millionths of a cent.

    Attributes:
        currency: ISO 4217, lower case.
        cache_read_microcents_per_million: None if cached input costs what other input costs.
    """

    currency: str = "usd"
    input_cents_per_million: int
    output_cents_per_million: int
    cache_read_microcents_per_million: int | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model.

    Attributes:
        id: Public id in catalogue spelling; matched case-insensitively.
        aliases: Further names under which it is listed and may be asked for.
        provider: The model's family, such as `qwen`.
        tier: The operator's word for who may use it.
        context_length: Window for prompt and output together.
        max_output_tokens: Cap on generated tokens, if the model has one.
        honors_sampling: Whether temperature, top_p and the two penalties reach the model.
        reasoning_headroom: Tokens added to the client's limit while reasoning is on.
        vocab_size: Token ids are below this; 0 if unknown.
        created: Unix seconds.
    """

    id: str
    aliases: tuple[str, ...] = ()
    display_name: str | None = None
    description: str | None = None
    owned_by: str = "headrace"
    provider: str | None = None
    tier: str | None = None
    created: int = 0
    context_length: int
    max_output_tokens: int | None = None
    vocab_size: int = 0
    capabilities: Capabilities = Capabilities()
    honors_sampling: bool = True
    reasoning_headroom: int = 0
    zdr_supported: bool = False
    pricing: Pricing | None = None

    @property
    def default_output_tokens(self) -> int:
        """The output limit of a request that sets none.

        Source: Chat Completions, "Output length": the model's cap when it has one, otherwise
        65,536 tokens or half the context window, whichever is smaller.
        """
        if self.max_output_tokens is not None:
            return self.max_output_tokens
        return max(1, min(65_536, self.context_length // 2))


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker announces about itself.

    Attributes:
        slots: Jobs it runs at once.
        running: Jobs it holds now.
        running_batch: Batch Jobs among them; each gives its slot to a live one that needs it.
        batch_floor: Slots that live Jobs never take.
        draining: It takes no more Jobs.
        sent_at: Unix seconds, by the worker's clock. Freshness is judged by the reader's own.
        clock_ahead_s: How far the worker's clock is ahead of the reader's, who works it out.
        sealing_key: The public key to which Jobs are sealed that nobody else may read; None where
            nothing needs to be sealed.
    """

    worker_id: str
    card: ModelCard
    engine: str
    slots: int
    running: int = 0
    running_batch: int = 0
    batch_floor: int = 0
    draining: bool = False
    sent_at: float = 0.0
    clock_ahead_s: float = 0.0
    sealing_key: bytes | None = None

    @property
    def live_room(self) -> int:
        """How many more live Jobs it would run at once, as far as it has told."""
        live = self.running - self.running_batch
        return 0 if self.draining else max(0, self.slots - self.batch_floor - live)


def served_id(model: str) -> str:
    """The public id of a model that was named by a path or a hub id.

    A path is known by its last component; anything else is an id already.
    """
    if model.startswith(("/", "./", "../", "~")):
        return model.rstrip("/").rsplit("/", 1)[-1]
    return model

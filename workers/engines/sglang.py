"""The `sglang` engine: SGLang in the worker process, driven by token ids.

Requests go in with ids of our own, increments come out. Every way out of `generate` leaves nothing
running: SGLang is told to abort before its iterator is let go.

If a process of SGLang dies or hangs, `failed` tells; the worker must end then, and a supervisor
starts it anew.

Source: `sglang.srt.managers.tokenizer_manager`, version 0.5.23.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
import psutil
import structlog

from schemas.errors import GenerationFailed, ModelRequestRejected, ServingError
from schemas.job import Job, TokenPrompt
from schemas.model_card import Capabilities, EngineAccess, ModelCard
from schemas.sampling import OutputLimit, SamplingParams
from workers.constraint import refused_constraint
from workers.control_text import has_output_marker, special_texts
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.sglang_choice import Choice
from workers.engines.sglang_grammar import GrammarTrial
from workers.engines.sglang_health import HANG_S, LAST_WORDS_S, Health
from workers.engines.sglang_launch import Launched, launch, shut_down
from workers.engines.sglang_metrics import SglangMetrics
from workers.engines.sglang_request import (
    ModelFacts,
    arguments,
    check,
    check_length,
    grammar,
)
from workers.engines.sglang_vision import Vision
from workers.engines.standstill import LIMIT_S, until_standstill
from workers.render import (
    ChatRenderer,
    knows_tools,
    reasoning_support,
    rendered_images,
)
from workers.supervisor import end_now
from workers.token_bytes import TokenBytes

log = structlog.get_logger()

_PRIORITIES: Final = (-100, 100)
"""Ranks that callers may ask for where SGLang schedules by rank."""

_BATCH_RANK: Final = 1_000
"""How far behind live requests batch work stands: further than any of those ranks."""

_REPLAY_CONTEXT: Final = 16
"""Ids before the ones replayed that are decoded for what they may have kept of their text."""

_THREAD_REPLAY_TOKENS: Final = 512
"""Prefixes of more tokens than this are decoded off the event loop."""


class _Running:
    """One request inside SGLang."""

    __slots__ = ("aborted", "rid")

    def __init__(self, engine_request_id: str) -> None:
        # SGLang aborts every request whose id *starts* with the given one, so none may be the
        # beginning of another: choice 1 must not take choice 10 with it.
        self.rid = f"{engine_request_id}|"
        self.aborted = False


class SglangEngine:
    """Implements `workers.engines.base.Engine`.

    Args:
        model: Directory or hub id.
        served_id: Public id for the model card.
        slots: Requests run at once; SGLang queues more.
        server_args: Fields of SGLang's `ServerArgs`; they win over everything set here.
        hang_s: How long SGLang may do nothing at all while it has requests.
        last_words_s: How long this process may go on after SGLang has failed.
    """

    name = "sglang"
    takes_token_ids = True

    def __init__(
        self,
        model: str,
        *,
        served_id: str,
        slots: int = 32,
        server_args: Mapping[str, Any] | None = None,
        hang_s: float = HANG_S,
        last_words_s: float = LAST_WORDS_S,
    ) -> None:
        self._model = model
        self._served_id = served_id
        self._server_args = dict(server_args or {})
        self._slots: int = self._server_args.get("max_running_requests", slots)
        self._running: dict[str, _Running] = {}
        self._hang_s = hang_s
        self._last_words_s = last_words_s
        self._launched: Launched | None = None
        self._health: Health | None = None
        self._grammars: GrammarTrial | None = None
        self._metrics: SglangMetrics | None = None
        self._card: ModelCard | None = None
        self._vision: Vision | None = None
        self.template_stop_strings: tuple[str, ...] = ()

    async def start(self) -> None:
        """Load the model and answer one request, as the first is slow.

        If it stands still the process ends at once.
        """
        watch = None
        if self._server_args.get("nnodes", 1) == 1:  # others may have to be waited for
            watch = asyncio.create_task(_end_at_standstill())
        try:
            await self._start()
        finally:
            if watch is not None:
                watch.cancel()

    async def _start(self) -> None:
        self._launched = await launch(
            self._model,
            slots=self._slots,
            server_args=self._server_args,
            last_words_s=self._last_words_s,
        )
        self._metrics = SglangMetrics.adopt()
        self._sglang = self._launched.engine
        self._manager = self._sglang.tokenizer_manager
        self._tokenizer = self._manager.tokenizer
        self._bytes = TokenBytes(self._tokenizer)
        config = self._manager.model_config
        self._end_ids = _end_ids(config, self._tokenizer)
        scheduler = self._sglang._scheduler_init_result.scheduler_infos[0]
        self._facts = ModelFacts(
            context_length=min(config.context_len, scheduler["max_total_num_tokens"]),
            max_prompt_tokens=scheduler["max_req_input_len"] - 1,
            vocab_size=config.vocab_size,
            deterministic=bool(self._manager.config_value("enable_deterministic_inference")),
            sampling_defaults=config.get_default_sampling_params(),
            shows_special=has_output_marker(special_texts(self._tokenizer)),
            access=_access(self._server_args),
            batch_rank=_batch_rank(self._manager),
        )
        if config.is_image_understandable_model and self._manager.mm_processor is not None:
            self._vision = Vision(self._manager.mm_processor, self._tokenizer)
            _adopt_template(self._tokenizer, self._manager.processor)
        self._renderer = ChatRenderer(
            self._tokenizer,
            show_special=self._facts.shows_special,
            vision=self._vision is not None,
            image_marker=self._vision.marker if self._vision else None,
        )
        self._card = ModelCard(
            id=self._served_id,
            context_length=self._facts.context_length,
            vocab_size=self._facts.vocab_size,
            capabilities=Capabilities(
                vision=self._vision is not None,
                tools=knows_tools(self._renderer),
                regex=True,
                grammar=True,
                completions=True,
                engine=self._facts.access,
                reasoning=reasoning_support(self._renderer),
            ),
        )
        self.template_stop_strings = _stop_strings(config.hf_generation_config)
        await self._start_grammars(config)
        self._health = Health(
            self._launched.failure,
            self._manager,
            self._sglang.get_all_child_pids(),
            hang_s=self._hang_s,
        )
        self._health.start()
        await self._warm_up()

    async def _start_grammars(self, config: Any) -> None:
        if self._server_args.get("grammar_backend", "xgrammar") != "xgrammar":
            return  # another compiler may like other grammars
        info = partial(
            _tokenizer_info, self._tokenizer, config.vocab_size, config.hf_eos_token_id or ()
        )
        compact = self._server_args.get("constrained_json_disable_any_whitespace", True)
        grammars = GrammarTrial()
        await grammars.start(info, any_whitespace=not compact)
        self._grammars = grammars

    def collectors(self) -> Sequence[SglangMetrics]:
        """See `MeasuredEngine`."""
        return [] if self._metrics is None else [self._metrics]

    async def stop(self) -> None:
        if self._grammars is not None:
            await self._grammars.stop()
        if self._health is not None:
            await self._health.stop()
        if self._launched is not None:
            launched, self._launched = self._launched, None
            await shut_down(launched)

    @property
    def card(self) -> ModelCard:
        assert self._card is not None, "the card is known after `start`"
        return self._card

    @property
    def tokenizer(self) -> ChatRenderer:
        return self._renderer

    @property
    def slots(self) -> int:
        return self._slots

    def prompt_tokens(self, job: Job, prompt_ids: tuple[int, ...]) -> int | None:
        """See `SeeingEngine`."""
        assert self._vision is not None, "images are rendered for models that see"
        return self._vision.prompt_tokens(prompt_ids, rendered_images(job))

    async def running(self) -> int:
        """The larger of two counts, as each is late in one direction.

        The scheduler publishes its own after a step, through shared memory; the tokenizer manager
        counts a request from its arrival until the scheduler has said that it is over.
        """
        loads = await self._manager.get_loads()
        published: int = sum(load.num_running_reqs + load.num_waiting_reqs for load in loads)
        return max(published, len(self._manager.rid_to_state))

    @property
    def _has_failed(self) -> bool:
        return self._launched is not None and self._launched.failure.told

    async def failed(self) -> str:
        """See `Engine`. Soon afterwards the process ends by force."""
        assert self._launched is not None, "it can fail after `start`"
        return await self._launched.failure.wait()

    async def abort(self, engine_request_id: str) -> None:
        if (running := self._running.get(engine_request_id)) is None:
            return
        running.aborted = True
        if self._has_failed:
            return
        state = self._manager.rid_to_state.get(running.rid)
        # An abort that overtakes its request on the way to the scheduler would be lost, and SGLang
        # sends none twice; such a request is aborted at its first output instead.
        if state is not None and state.dispatched:
            self._manager.abort_request(running.rid)

    async def check(self, request: EngineRequest) -> None:
        """Refuse what SGLang cannot run, and a constraint that its scheduler could not bear."""
        check(request, self._facts)
        if request.constraint is None or self._grammars is None:
            return
        if not await self._grammars.passes(*grammar(request.constraint)):
            raise refused_constraint(request.job)

    def replay(self, request: EngineRequest, start: int = 0) -> list[EngineChunk]:
        """What an earlier attempt generated, as it was streamed."""
        if not (skipped := max(0, start - _REPLAY_CONTEXT)):
            return self._choice(request).replay()[start:]
        near = msgspec.structs.replace(
            request,
            prompt_ids=request.prompt_ids + request.prefix_ids[:skipped],
            prefix_ids=request.prefix_ids[skipped:],
        )
        return self._choice(near).replay()[start - skipped :]

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Run one choice.

        Raises:
            RequestError: The request cannot be run, or its grammar does not compile.
            GenerationFailed: SGLang failed it.
        """
        if self._has_failed:
            raise GenerationFailed("The model failed to answer.", diagnostic="sglang has failed")
        await self.check(request)
        choice = self._choice(request)
        if (finish := choice.ended()) is not None:
            yield EngineChunk(finish=finish)
            return
        running = self._running[request.engine_request_id] = _Running(request.engine_request_id)
        outputs = None
        try:
            if request.prefix_ids:
                await self._prepare(choice, request)
            pictures = await self._pictures(request)
            if running.aborted:
                yield EngineChunk(finish=EngineFinish(reason="abort"))
                return
            outputs = await self._sglang.async_generate(
                **arguments(request, self._facts),
                image_data=pictures,
                rid=running.rid,
                stream=True,
            )
            async for output in outputs:
                for piece in output.get("pieces", (output,)):
                    if running.aborted and piece["meta_info"]["finish_reason"] is None:
                        # It is nobody's, and the last output tells how much it was.
                        self._abort(running)
                        continue
                    chunk = _chunk(piece, request, running, choice)
                    yield chunk
                    if chunk.finish is not None:
                        return
        except (ValueError, RuntimeError) as error:
            if rendered_images(request.job):
                # The rest was checked before, so it is them: most likely there is no room for all.
                raise ModelRequestRejected(
                    "The model cannot take the images of this request.", param="messages"
                ) from None
            if isinstance(error, RuntimeError):
                raise
            raise GenerationFailed(
                "The model failed to answer.", diagnostic="sglang refused the request"
            ) from error
        finally:
            await self._let_go(running, outputs)
            del self._running[request.engine_request_id]

    async def _let_go(self, running: _Running, outputs: Any) -> None:
        """Leave nothing running of a request, which may be over or not have begun."""
        if self._has_failed:
            return
        self._abort(running)
        if outputs is not None:
            await outputs.aclose()

    def _abort(self, running: _Running) -> None:
        """Have SGLang end a request that it has; it is told once, however often this is called."""
        if not self._has_failed:  # else nobody takes it, and sending it would wait for ever
            self._manager.abort_request(running.rid)

    def _choice(self, request: EngineRequest) -> Choice:
        return Choice(request, self._facts, self._tokenizer, self._bytes, self._end_ids)

    async def _prepare(self, choice: Choice, request: EngineRequest) -> None:
        """Let a choice begin where its prefix ends."""
        if len(request.prefix_ids) > _THREAD_REPLAY_TOKENS:
            await asyncio.to_thread(choice.replay)
        else:
            choice.replay()

    async def _pictures(self, request: EngineRequest) -> list[Any] | None:
        """The images of a request, decoded; None if it has none.

        Raises:
            RequestError: They cannot be part of this prompt.
        """
        images = rendered_images(request.job)
        if not images or self._vision is None:
            return None
        tokens = await asyncio.to_thread(self.prompt_tokens, request.job, request.prompt_ids)
        if tokens is not None:
            check_length(tokens, request.max_tokens, self._facts)
        return await asyncio.to_thread(self._vision.open, images)

    async def _warm_up(self) -> None:
        job = Job(
            job_id="warm-up",
            model=self._served_id,
            prompt=TokenPrompt(prompts=((0,),)),
            sampling=SamplingParams(limit=OutputLimit(max_tokens=4)),
            created_at=0,
            deadline=0,
            queue_deadline=0,
        )
        request = EngineRequest(engine_request_id="warm-up", job=job, prompt_ids=(0,), max_tokens=4)
        async for _ in self.generate(request):
            pass


async def _end_at_standstill() -> None:
    """End this process if its start does: whoever hangs holds what an orderly end would need."""
    await until_standstill(psutil.Process())
    log.error("engine.start_stuck", still_s=LIMIT_S)
    faulthandler.dump_traceback()  # lines of code, and nothing of what they work on
    end_now(os.EX_SOFTWARE)


def _chunk(
    output: Mapping[str, Any], request: EngineRequest, running: _Running, choice: Choice
) -> EngineChunk:
    """What one output says.

    Raises:
        ServingError: SGLang ended the request with an error.
    """
    reason = output["meta_info"]["finish_reason"]
    aborted = reason is not None and reason["type"] == "abort"
    if aborted and not running.aborted and reason.get("status_code"):
        raise _refusal(request, reason["status_code"])
    if aborted or running.aborted:
        # What comes with it may repeat earlier output, so none of it is passed on but its size.
        tokens = output["meta_info"].get("completion_tokens", 0) - choice.told
        return EngineChunk(output_tokens=max(0, tokens), finish=EngineFinish(reason="abort"))
    return choice.chunk(output)


def _access(server_args: Mapping[str, Any]) -> EngineAccess:
    """What the operator opened by starting SGLang with it."""
    states: tuple[Literal["last", "all"], ...] = ()
    mode = server_args.get("return_hidden_states_mode")
    if server_args.get("enable_return_hidden_states") or mode == "full":
        states = ("last", "all")
    elif mode == "last":
        states = ("last",)
    adapters = server_args.get("lora_paths") or ()
    return EngineAccess(
        logit_processors=bool(server_args.get("enable_custom_logit_processor")),
        hidden_states=states,
        routed_experts=bool(server_args.get("enable_return_routed_experts")),
        adapters=tuple(name for name in map(_adapter_name, adapters) if "/" not in name),
        priorities=_PRIORITIES if server_args.get("enable_priority_scheduling") else (0, 0),
    )


def _batch_rank(manager: Any) -> int | None:
    if not manager.config_value("enable_priority_scheduling"):
        return None
    low_first = manager.config_value("schedule_low_priority_values_first")
    return _BATCH_RANK if low_first else -_BATCH_RANK


def _adapter_name(adapter: str | Mapping[str, str]) -> str:
    """From SGLang's spellings: a name (of a mapping), `name=path`, a bare path, or an object."""
    if isinstance(adapter, str):
        return adapter.partition("=")[0]
    return adapter["lora_name"]


def _refusal(request: EngineRequest, status: int) -> ServingError:
    """The error for a request that SGLang ended with a status.

    Everything else it answers 400 to was checked before, so with a constraint it is the constraint.
    """
    if status == 400 and request.constraint is not None:
        return refused_constraint(request.job)
    return GenerationFailed("The model failed to answer.", diagnostic=f"sglang status {status}")


def _end_ids(config: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that SGLang takes for the model's natural end."""
    additional = getattr(tokenizer, "additional_stop_token_ids", None) or ()
    ids = {*(config.hf_eos_token_id or ()), *additional, tokenizer.eos_token_id}
    return frozenset(ids - {None})


def _tokenizer_info(tokenizer: Any, vocab_size: int, end_ids: Collection[int]) -> str:
    """What XGrammar knows of a tokenizer, as SGLang tells it."""
    from xgrammar import TokenizerInfo

    info = TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=list(end_ids) or None
    )
    text: str = info.serialize_json()
    return text


def _adopt_template(tokenizer: Any, processor: Any) -> None:
    """Some models' chat template comes with their processor only."""
    if not tokenizer.chat_template:
        tokenizer.chat_template = getattr(processor, "chat_template", None)


def _stop_strings(generation_config: Any) -> tuple[str, ...]:
    """Stop strings that come with the model, for base models that talk in labelled lines."""
    stops = getattr(generation_config, "stop_strings", None) or ()
    return (stops,) if isinstance(stops, str) else tuple(stops)

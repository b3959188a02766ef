"""The `sglang` engine: SGLang in the worker process, driven by token ids.

Requests go in with ids of our own, increments come out. Every way out of `generate` leaves nothing
running: SGLang is told to abort before its iterator is let go.

If SGLang's scheduler dies, SGLang kills the process it lives in, and nothing here hides that: a
supervisor restarts the worker and the broker hands its Jobs to others.

Source: `sglang.srt.managers.tokenizer_manager`, version 0.5.23.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Final, Literal

from schemas.delta import PromptLogprob, TokenLogprob, TopLogprob
from schemas.errors import GenerationFailed, ModelRequestRejected, ServingError
from schemas.job import Job, TokenPrompt
from schemas.model_card import Capabilities, EngineAccess, ModelCard
from schemas.sampling import OutputLimit, SamplingParams
from workers.constraint import refused_constraint
from workers.control_text import has_output_marker, special_texts
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.sglang_grammar import GrammarTrial
from workers.engines.sglang_launch import Launched, launch, shut_down
from workers.engines.sglang_request import (
    ModelFacts,
    arguments,
    check,
    check_length,
    grammar,
    shows_special,
)
from workers.engines.sglang_vision import Vision
from workers.render import (
    ChatRenderer,
    knows_tools,
    reasoning_support,
    rendered_images,
)
from workers.token_bytes import TokenBytes

_LEAST_LOGPROB: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""

_PRIORITIES: Final = (-100, 100)
"""Ranks that callers may ask for where SGLang schedules by rank."""

_REPLACEMENT: Final = "\ufffd"


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
    ) -> None:
        self._model = model
        self._served_id = served_id
        self._server_args = dict(server_args or {})
        self._slots: int = self._server_args.get("max_running_requests", slots)
        self._running: dict[str, _Running] = {}
        self._launched: Launched | None = None
        self._grammars: GrammarTrial | None = None
        self._card: ModelCard | None = None
        self._vision: Vision | None = None
        self.template_stop_strings: tuple[str, ...] = ()

    async def start(self) -> None:
        """Load the model and answer one request, as the first is slow."""
        self._launched = await launch(self._model, slots=self._slots, server_args=self._server_args)
        self._sglang = self._launched.engine
        self._manager = self._sglang.tokenizer_manager
        self._tokenizer = self._manager.tokenizer
        self._bytes = TokenBytes(self._tokenizer)
        config = self._manager.model_config
        scheduler = self._sglang._scheduler_init_result.scheduler_infos[0]
        self._facts = ModelFacts(
            context_length=min(config.context_len, scheduler["max_total_num_tokens"]),
            max_prompt_tokens=scheduler["max_req_input_len"] - 1,
            vocab_size=config.vocab_size,
            deterministic=bool(self._manager.config_value("enable_deterministic_inference")),
            sampling_defaults=config.get_default_sampling_params(),
            shows_special=has_output_marker(special_texts(self._tokenizer)),
            access=_access(self._server_args),
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

    async def stop(self) -> None:
        if self._grammars is not None:
            await self._grammars.stop()
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

    async def abort(self, engine_request_id: str) -> None:
        if (running := self._running.get(engine_request_id)) is None:
            return
        running.aborted = True
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

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Run one choice.

        Raises:
            RequestError: The request cannot be run, or its grammar does not compile.
            GenerationFailed: SGLang failed it.
        """
        await self.check(request)
        running = self._running[request.engine_request_id] = _Running(request.engine_request_id)
        choice = _Choice(request, self._facts, self._tokenizer, self._bytes)
        outputs = None
        try:
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
                reason = output["meta_info"]["finish_reason"]
                aborted = reason is not None and reason["type"] == "abort"
                if aborted and not running.aborted and reason.get("status_code"):
                    raise _refusal(request, reason["status_code"])
                if aborted or running.aborted:
                    # What comes with it may repeat earlier output, so none of it is passed on.
                    yield EngineChunk(finish=EngineFinish(reason="abort"))
                    return
                chunk = choice.chunk(output)
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
            self._manager.abort_request(running.rid)  # nothing if it is over
            if outputs is not None:
                await outputs.aclose()
            del self._running[request.engine_request_id]

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


class _Choice:
    """Turns SGLang's outputs for one choice into chunks."""

    def __init__(
        self, request: EngineRequest, facts: ModelFacts, tokenizer: Any, token_bytes: TokenBytes
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._bytes = token_bytes
        self._shows_special = shows_special(request.job, facts)
        stop = request.job.sampling.stop
        self._stop_ids = frozenset(stop.token_ids)
        # With `ignore_eos` SGLang ignores the caller's stop ids, too.
        self._watched = self._stop_ids if stop.ignore_eos else frozenset()
        self._ids: list[int] = []
        self._sent = 0
        self._recent: tuple[int, ...] = ()
        self._begun = False

    def chunk(self, output: Mapping[str, Any]) -> EngineChunk:
        text: str = output["text"]
        ids: tuple[int, ...] = tuple(output["output_ids"])
        meta = output["meta_info"]
        finish = self._finish(meta["finish_reason"])
        if self._watched:
            text, ids, finish = self._stop_at_id(text, ids, finish)
        self._recent = (*self._recent, *ids)[-5:]
        if finish is not None:
            text = self._last_text(text, meta["finish_reason"])
        return EngineChunk(
            text=text,
            token_ids=ids,
            logprobs=self._logprobs(meta, len(ids)),
            prompt_logprobs=self._prompt_logprobs(meta),
            output_tokens=len(ids),
            input_tokens=meta["prompt_tokens"],
            cached_tokens=meta["cached_tokens"],
            hidden_states=self._hidden_states(meta) if finish is not None else None,
            routed_experts=meta.get("routed_experts") if finish is not None else None,
            finish=finish,
        )

    def _finish(self, reason: Mapping[str, Any] | None) -> EngineFinish | None:
        if reason is None:
            return None
        matched = reason.get("matched")
        if isinstance(matched, str) and matched not in self._request.stop_strings:
            # This is how SGLang reports that the model's output was not a number.
            raise GenerationFailed("The model failed to answer.", diagnostic="invalid logits")
        if isinstance(matched, int) and matched not in self._stop_ids:
            matched = None
        return EngineFinish(reason=reason["type"], matched=matched)

    def _stop_at_id(
        self, text: str, ids: tuple[int, ...], finish: EngineFinish | None
    ) -> tuple[str, tuple[int, ...], EngineFinish | None]:
        """Cut a chunk after the first watched id, if it has one."""
        end = next((at for at, token_id in enumerate(ids) if token_id in self._watched), None)
        if end is None:
            self._ids += ids
            self._sent += len(text)
            return text, ids, finish
        whole = self._decode([*self._ids, *ids[:end]])
        return whole[self._sent :], ids[: end + 1], EngineFinish(reason="stop", matched=ids[end])

    def _last_text(self, text: str, reason: Mapping[str, Any] | None) -> str:
        """The last increment without the text of a stop token and without half a character."""
        recent = self._recent
        if isinstance(matched := (reason or {}).get("matched"), int):
            recent = recent[:-1]
            if self._request.stop_strings and not self._request.job.sampling.stop.include_in_text:
                # `no_stop_trim` keeps stop tokens as well as stop strings.
                text = text.removesuffix(self._decode([matched]))
        if text.endswith(_REPLACEMENT):
            tail = b"".join(self._bytes[token_id] for token_id in recent)
            if not tail.endswith(_REPLACEMENT.encode()):
                text = text[:-1]
        return text

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids,
            skip_special_tokens=not self._shows_special,
            spaces_between_special_tokens=self._request.job.sampling.spaces_between_special_tokens,
        )
        return text

    def _logprobs(self, meta: Mapping[str, Any], count: int) -> tuple[TokenLogprob, ...]:
        if not self._request.job.sampling.logprobs:
            return ()
        return tuple(
            TokenLogprob(
                token_id,
                self._bytes[token_id].decode(errors="replace"),
                self._bytes[token_id],
                max(logprob, _LEAST_LOGPROB),
                tuple(self._top(*entry) for entry in top or ()),
                tuple(self._top(*entry) for entry in asked or ()),
            )
            for (logprob, token_id, _), top, asked in islice(_positions(meta, "output"), count)
        )

    def _prompt_logprobs(self, meta: Mapping[str, Any]) -> tuple[PromptLogprob, ...]:
        """All of them, on the first output; SGLang repeats them on every one."""
        begun, self._begun = self._begun, True
        sampling = self._request.job.sampling
        if begun or not sampling.logprobs or sampling.prompt_logprobs_from is None:
            return ()
        return tuple(
            PromptLogprob(
                token_id,
                self._bytes[token_id].decode(errors="replace"),
                self._bytes[token_id],
                None if logprob is None else max(logprob, _LEAST_LOGPROB),
                tuple(self._top(*entry) for entry in top or ()),
                tuple(self._top(*entry) for entry in asked or ()),
            )
            for (logprob, token_id, _), top, asked in islice(
                _positions(meta, "input"), int(sampling.prompt_logprobs_from > 0), None
            )
        )

    def _hidden_states(self, meta: Mapping[str, Any]) -> list[Any] | None:
        wanted = self._request.job.sampling.engine.hidden_states
        states: list[Any] | None = meta.get("hidden_states")
        if wanted != "last" or not states:
            return states
        return states[-1] if isinstance(states[-1], list) else states

    def _top(self, logprob: float, token_id: int, _: Any) -> TopLogprob:
        token_bytes = self._bytes[token_id]
        return TopLogprob(
            token_id,
            token_bytes.decode(errors="replace"),
            token_bytes,
            max(logprob, _LEAST_LOGPROB),
        )


def _positions(meta: Mapping[str, Any], side: str) -> Iterator[tuple[Any, Any, Any]]:
    """Per token of one side: itself, its best alternatives, those that were asked about."""
    tokens = meta.get(f"{side}_token_logprobs") or ()
    top = meta.get(f"{side}_top_logprobs") or ()
    asked = meta.get(f"{side}_token_ids_logprobs") or ()
    return islice(zip_longest(tokens, top, asked), len(tokens))


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

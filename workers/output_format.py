"""How a model writes what it generates, and what follows from that for a Job.

Facts of the loaded model: its markers of reasoning and of calls, its template's stop strings. It
must not know the transport, and of the engine only whether it writes raw text.
"""

from __future__ import annotations

from schemas.job import ChatPrompt, Job
from schemas.sampling import Constraint
from workers.constraint import calls_allowed, effective_constraint
from workers.engines.base import EngineRequest
from workers.parsing.harmony import BEFORE_FINAL, HARMONY_NAME
from workers.parsing.pipeline import ChoiceParser, build_parser
from workers.parsing.reasoning import REASONING_FORMATS
from workers.parsing.tools import ToolFormat


class OutputFormat:
    """The output format of one model.

    Attributes:
        reasoning: How it marks its reasoning, by name; None if it does not reason.
        tools: How it writes tool calls; None if it does not, or not as text.

    Args:
        hidden_reasoning: It may think although it was told not to.
        template_stops: Stop strings that belong to its chat template.
    """

    def __init__(
        self,
        *,
        reasoning: str | None = None,
        hidden_reasoning: bool = False,
        tools: ToolFormat | None = None,
        template_stops: tuple[str, ...] = (),
    ) -> None:
        self.reasoning = reasoning
        self._hidden_reasoning = hidden_reasoning
        self.tools = tools
        self._template_stops = template_stops

    def parser(self, request: EngineRequest) -> ChoiceParser:
        """The output parser of one choice."""
        job = request.job
        chat = job.prompt if isinstance(job.prompt, ChatPrompt) else None
        return build_parser(
            request.choice,
            reasoning_format=self.reasoning if chat and not chat.continue_last else None,
            starts_inside=request.reasoning_open,
            visible=chat is None or chat.reasoning.visible,
            stop=job.sampling.stop,
            template_stops=self._template_stops if chat else (),
            turned_off=chat is not None and chat.reasoning.effort == "none",
            hidden_when_off=self._hidden_reasoning
            and chat is not None
            and not chat.reasoning.enabled,
            tool_format=self.tools if calls_allowed(job) else None,
            tools=chat.tools if chat else (),
            single_call=chat is not None and not chat.tool_choice.parallel,
        )

    def constraint(self, job: Job, *, reasoning_open: bool) -> Constraint | None:
        """What restricts the whole output, reasoning included."""
        markers = REASONING_FORMATS.get(self.reasoning or "")
        if self.reasoning == HARMONY_NAME and not calls_allowed(job):
            markers = BEFORE_FINAL  # calls bring their own room for reasoning
        return effective_constraint(
            job,
            tool_format=self.tools,
            reasoning_format=markers,
            reasoning_open=reasoning_open,
        )

    def engine_stops(self, job: Job) -> tuple[str, ...]:
        """Stop strings for the engine to end at.

        Only where all text is answer text: they must not act inside reasoning or tool calls. Nor
        before a minimum of tokens, which engines apply to token ids only. The parser looks for
        them in any case and cuts them off.
        """
        chat = job.prompt if isinstance(job.prompt, ChatPrompt) else None
        if chat is not None and (chat.tools or self.reasoning):
            return ()
        if job.sampling.limit.min_tokens:
            return ()
        return job.sampling.stop.strings + (self._template_stops if chat else ())

"""What a model really reads of a Messages request: rendered by the tiny model's own template."""

from __future__ import annotations

from typing import Any

import pytest

from ingress.dialects.messages import Messages
from schemas.errors import UnsupportedValue
from schemas.job import Job
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from tests import tiny_model
from tests.unit.dialects.transcripts import CONTEXT
from workers.engines.base import EngineRequest
from workers.engines.upstream_request import request_body
from workers.render import ChatRenderer

CARD = ModelCard(
    id="tiny",
    context_length=4096,
    capabilities=Capabilities(
        tools=True, reasoning=ReasoningSupport(efforts=("none", "high"), default="high")
    ),
)
ROLL: Any = {"type": "tool_use", "id": "toolu_d", "name": "roll", "input": {"sides": 20}}
HI: Any = {"role": "user", "content": "Hi."}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_model.build_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer)


def normalise(*turns: Any, **fields: Any) -> Job:
    messages = Messages()
    body = {"model": "tiny", "max_tokens": 5, "messages": list(turns), **fields}
    return messages.normalise(messages.parse(body), CARD, CONTEXT).job


def render(renderer: ChatRenderer, *turns: Any, **fields: Any) -> tuple[tuple[int, ...], bool]:
    return renderer.render_chat(normalise(*turns, **fields))


def text_of(tokenizer: Any, rendered: tuple[tuple[int, ...], bool]) -> str:
    text: str = tokenizer.decode(list(rendered[0]), skip_special_tokens=False)
    return text


def with_template(template: str) -> ChatRenderer:
    tokenizer = tiny_model.build_tokenizer()
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer)


@pytest.mark.rule("messages.results-first", "messages.tool-result", "messages.thinking-back")
def test_a_conversation_with_a_call_in_the_order_that_templates_need(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    rendered = render(
        renderer,
        {"role": "user", "content": "Roll."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A d20 fits.", "signature": ""},
                {"type": "text", "text": "Rolling."},
                ROLL,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "In words please."},
                {"type": "tool_result", "tool_use_id": "toolu_d", "content": "14"},
            ],
        },
        system=[{"type": "text", "text": "Be terse."}, {"type": "text", "text": "Use metric."}],
        thinking={"type": "enabled"},
    )
    assert text_of(tokenizer, rendered) == (
        "<|im_start|>system\nBe terse.\nUse metric.<|im_end|>\n"
        "<|im_start|>user\nRoll.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nA d20 fits.\n</think>\n\nRolling.\n<tool_call>\n"
        '{"name": "roll", "arguments": {"sides": 20}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n14\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nIn words please.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.rule("messages.thinking-off-by-default")
def test_thinking_that_was_not_asked_for_is_switched_off(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    off = text_of(tokenizer, render(renderer, HI))
    on = text_of(tokenizer, render(renderer, HI, thinking={"type": "enabled"}))
    assert off == on + "<think>\n\n</think>\n\n"


@pytest.mark.rule("messages.billing-header")
def test_a_line_that_differs_per_request_does_not_reach_the_prompt(renderer: ChatRenderer) -> None:
    prompts = [
        render(
            renderer,
            HI,
            system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=9; cch={cch};"},
                {"type": "text", "text": "The long fixed text."},
            ],
        )
        for cch in ("aa11", "bb22")
    ]
    assert prompts[0] == prompts[1]


def test_a_template_that_wants_one_system_message_gets_one(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    turns = [HI, {"role": "system", "content": "Later."}, {"role": "user", "content": "Go."}]
    text = text_of(tokenizer, render(renderer, *turns, system="First."))
    assert text.startswith("<|im_start|>system\nFirst.\n\nLater.<|im_end|>\n")
    assert text.count("<|im_start|>system") == 1


@pytest.mark.rule("messages.prefill")
@pytest.mark.parametrize(
    "begun", ["The answer is", "The answer is ", "{\n", "a</think>b", "<|im_end|>", "x<|im_", " a "]
)
def test_a_begun_answer_ends_the_prompt(renderer: ChatRenderer, tokenizer: Any, begun: str) -> None:
    ids, is_open = render(
        renderer, HI, {"role": "assistant", "content": begun}, thinking={"type": "enabled"}
    )
    assert text_of(tokenizer, (ids, is_open)) == (
        f"<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n{begun}"
    )
    assert not is_open
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in ids[-3:]


@pytest.mark.rule("messages.prefill")
def test_a_template_that_trims_still_ends_with_the_begun_answer(tokenizer: Any) -> None:
    trims = with_template(
        "{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}\n"
        "{% endfor %}[assistant]"
    )
    text = text_of(tokenizer, render(trims, HI, {"role": "assistant", "content": "So: "}))
    assert text == "[user] Hi.\n[assistant] So: "


@pytest.mark.rule("messages.prefill")
def test_a_template_that_does_not_show_the_begun_answer_cannot_continue_it() -> None:
    hides = with_template(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(UnsupportedValue) as raised:
        render(hides, HI, {"role": "assistant", "content": "secret"})
    assert raised.value.param == "messages"
    assert "secret" not in raised.value.message


@pytest.mark.rule("messages.prefill")
def test_a_chat_server_is_not_asked_to_continue_what_it_may_answer_anew() -> None:
    begun = normalise(HI, {"role": "assistant", "content": "secret"})
    with pytest.raises(UnsupportedValue) as raised:
        request_body(EngineRequest(engine_request_id="e", job=begun), "model")
    assert "secret" not in raised.value.message

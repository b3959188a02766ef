"""Images in a conversation: in their places, in order, whatever the template knows of them."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import ModelRequestRejected, UnsupportedValue
from schemas.job import ChatPrompt, Job
from schemas.message import ImagePart, Message, Part, Role, TextPart, ToolCall
from schemas.sampling import OutputLimit, SamplingParams
from tests import tiny_model
from workers.render import ChatRenderer, rendered_images

MARKER = "<|image|>"

WITH_PARTS = (
    "{%- macro show(content) %}{%- if content is string %}{{ content }}{%- else %}"
    "{%- for part in content %}{%- if part.type == 'image' %}" + MARKER + "{%- else %}"
    "{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}{%- endmacro %}"
)
EVERYWHERE = WITH_PARTS + (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{{ show(message.content) }}{{ '<|im_end|>\n' }}{%- endfor %}"
)
USERS_ONLY = WITH_PARTS + (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'tool' %}{{ 'result: ' + message.content }}{%- else %}"
    "{{ show(message.content) }}{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
)
SILENT_RESULTS = USERS_ONLY.replace("'result: ' + message.content", "'result: see below'")
PARTS_ONLY = (
    "{%- for message in messages %}{{ message.role + ': ' }}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}" + MARKER + "{%- elif part.type == 'text' %}{{ part.text }}"
    "{%- endif %}{%- endfor %}{{ '\n' }}{%- endfor %}"
)


def seeing(template: str, marker: str | None = MARKER) -> tuple[ChatRenderer, Any]:
    tokenizer = tiny_model.build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", MARKER]})
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer, vision=True, image_marker=marker), tokenizer


def image(name: str) -> ImagePart:
    return ImagePart(media_type="image/png", data=name.encode())


def turn(role: Role, *parts: str | ImagePart, **fields: Any) -> Message:
    found: list[Part] = [TextPart(text=p) if isinstance(p, str) else p for p in parts]
    return Message(role=role, parts=tuple(found), **fields)


def job(*messages: Message, **fields: Any) -> Job:
    return Job(
        job_id="j",
        model="tiny",
        prompt=ChatPrompt(messages=messages, **fields),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=1)),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )


def rendered(template: str, *messages: Message, **fields: Any) -> str:
    renderer, tokenizer = seeing(template)
    ids, _ = renderer.render_chat(job(*messages, **fields))
    marker = tokenizer.convert_tokens_to_ids(MARKER)
    return "".join("▢" if i == marker else tokenizer.decode([i]) for i in ids)


def test_images_stand_where_they_were_sent() -> None:
    text = rendered(EVERYWHERE, turn("user", "a", image("1"), "b", image("2")), turn("user", "c"))
    assert text == "<|im_start|>user\na▢b▢<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"


def test_an_image_in_a_result_stays_there_if_the_template_knows_how() -> None:
    call = turn("assistant", tool_calls=(ToolCall(id="c", name="shot", arguments="{}"),))
    result = turn("tool", "screen 1", image("1"), tool_call_id="c")
    text = rendered(EVERYWHERE, turn("user", "look"), call, result)
    assert text.endswith("<|im_start|>tool\nscreen 1▢<|im_end|>\n")


@pytest.mark.parametrize("template", [USERS_ONLY, SILENT_RESULTS])
def test_else_it_comes_in_a_turn_right_after_the_results(template: str) -> None:
    calls = tuple(ToolCall(id=i, name="shot", arguments="{}") for i in "cd")
    conversation = (
        turn("user", "look", image("0")),
        turn("assistant", tool_calls=calls),
        turn("tool", "screen 2", image("2"), tool_call_id="d"),
        turn("tool", "screen 1", image("1"), tool_call_id="c"),
        turn("user", "and this", image("3")),
    )
    text = rendered(template, *conversation)
    assert text.count("▢") == 4
    assert "<|im_start|>user\n▢▢<|im_end|>\n<|im_start|>user\nand this▢<|im_end|>\n" in text
    order = [part.data for part in rendered_images(job(*conversation))]
    assert order == [b"0", b"1", b"2", b"3"]


def test_a_template_without_a_place_for_images_refuses_them() -> None:
    with pytest.raises(ModelRequestRejected):
        rendered("{{ messages[0].role }}", turn("user", image("1")))
    renderer, _ = seeing("{{ messages[0].role }}", marker=None)
    assert renderer.render_chat(job(turn("user", image("1"))))[0]  # nothing to tell it by


def test_a_marker_that_a_caller_wrote_is_text_and_no_place() -> None:
    text = rendered(EVERYWHERE, turn("user", f"is {MARKER} a mark?", image("1")))
    assert text.count("▢") == 1
    assert MARKER in text
    with pytest.raises(ModelRequestRejected):
        rendered("{{ messages[0].content[0].text }}", turn("user", MARKER, image("1")))


def test_templates_that_walk_through_parts_get_parts_always() -> None:
    conversation = (turn("system", "s"), turn("user", "a", image("1")), turn("assistant", "b"))
    assert rendered(PARTS_ONLY, *conversation) == "system: s\nuser: a▢\nassistant: b\n"
    text = rendered(PARTS_ONLY, turn("user", "a"), turn("assistant", "b"), continue_last=True)
    assert text == "user: a\nassistant: b"


def test_models_that_do_not_see_take_no_images() -> None:
    tokenizer = tiny_model.build_tokenizer()
    with pytest.raises(UnsupportedValue):
        ChatRenderer(tokenizer).render_chat(job(turn("user", image("1"))))

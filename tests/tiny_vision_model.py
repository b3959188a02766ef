"""A tiny GLM-4V with random weights: it sees noise, but another picture makes other noise.

Its tokenizer is that of `tests.tiny_model` with the marks of images. An image has one token for
every 28 by 28 pixels, and 64 at most. It is built once and cached under a name that changes with
these files.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests import tiny_model

IMAGE = "<|image|>"
MARKS = (
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    IMAGE,
    "<|video|>",
)
TOKEN_SIDE = 28
MAX_IMAGE_TOKENS = 64

CHAT_TEMPLATE = r"""
{%- macro show(content) %}
{%- if content is string %}{{- content }}
{%- else %}{%- for part in content %}
{%- if part.type == 'image' %}{{- '<|begin_of_image|><|image|><|end_of_image|>' }}
{%- elif part.type == 'text' %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}
{%- endmacro %}
{%- for tool in tools or [] %}{{- tool | tojson + '\n' }}{%- endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}{{- show(message.content) }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n' + call.function.name + '\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}
"""


def _tokenizer() -> Any:
    tokenizer = tiny_model.build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *MARKS]})
    tokenizer.image_token, tokenizer.video_token = MARKS[4:]
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build(directory: Path) -> None:
    """Write tokenizer, processor and weights."""
    import torch
    from transformers import (
        Glm4vConfig,
        Glm4vForConditionalGeneration,
        Glm4vImageProcessor,
        Glm4vProcessor,
        Glm4vVideoProcessor,
    )

    tokenizer = _tokenizer()
    image_start, image_end, video_start, video_end, image, video = (
        tokenizer.convert_tokens_to_ids(mark) for mark in MARKS
    )
    torch.manual_seed(0)
    config = Glm4vConfig(
        text_config={
            "vocab_size": tiny_model.VOCAB_SIZE + 16,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": tiny_model.CONTEXT_LENGTH,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 6, 6],
                "partial_rotary_factor": 1.0,
            },
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "patch_size": 14,
            "image_size": 112,
        },
        image_token_id=image,
        video_token_id=video,
        image_start_token_id=image_start,
        image_end_token_id=image_end,
        video_start_token_id=video_start,
        video_end_token_id=video_end,
        dtype="float32",
    )
    model = Glm4vForConditionalGeneration(config).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(directory)
    pixels = 2 * TOKEN_SIDE**2  # the processor counts a still picture as two frames
    Glm4vProcessor(
        image_processor=Glm4vImageProcessor(
            size={"shortest_edge": 4 * pixels, "longest_edge": MAX_IMAGE_TOKENS * pixels}
        ),
        tokenizer=tokenizer,
        video_processor=Glm4vVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)


def cached(root: Path | None = None) -> Path:
    """The model's directory, built if these files have changed since."""
    root = root or Path.home() / ".cache" / "headrace-tests"
    sources = b"".join(Path(str(file)).read_bytes() for file in (__file__, tiny_model.__file__))
    directory = root / f"tiny-glm4v-{hashlib.sha256(sources).hexdigest()[:16]}"
    if not directory.exists():
        root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=root))
        try:
            build(work)
            work.rename(directory)
        except OSError:
            if not directory.exists():  # else another test run was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return directory

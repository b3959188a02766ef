"""A tiny Qwen3 with random weights and a tokenizer trained on the spot, for the real engine.

It speaks noise, but a `regex` or `ebnf` constraint scripts its output exactly. Its tokenizer is
small enough to cut most characters beyond ASCII into several byte tokens. The model is built once
and cached under a name that changes with this file.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

CONTEXT_LENGTH = 4096
VOCAB_SIZE = 4096
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

CHAT_TEMPLATE = r"""
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n\nYou may call functions. Their signatures:\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\n\nFor each call return JSON within these tags:\n<tool_call>\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'system' %}
{%- if not loop.first %}{{ raise_exception('The system message must be first.') }}{%- endif %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if message.reasoning_content %}
{{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user' }}
{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}
"""

_CORPUS = (
    "The quick brown fox jumps over the lazy dog while seven wizards boil a purple kettle. ",
    "Hello, world! How are you today? I am well, thank you; and you? Fine. ",
    "Wie geht es dir heute? Mir geht es gut, danke der Nachfrage. ",
    'def add(left: int, right: int) -> int:\n    """Add two numbers."""\n    return left + right\n',
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius", "days": 3}}\n',
    "<tools> functions signatures system user assistant tool response arguments \n\n",
)


def _corpus() -> list[str]:
    """Enough different words for some thousand merges, without any outside source."""
    stems = [a + b + c for a in "bcdfgklmnprstvw" for b in "aeiou" for c in "bdklmnrst"]
    words = [f" {stem}{end}" for stem in stems for end in ("", "ing", "ed", "er", "s")]
    return [*_CORPUS * 50, *(" ".join(words[i : i + 40]) for i in range(0, len(words), 40))]


def build_tokenizer() -> Any:
    """The tokenizer with its chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKERS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    # As in Qwen3, these are control tokens although they are not marked special.
    tokenizer.add_tokens(
        [AddedToken(marker, special=False, normalized=False) for marker in MARKERS]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build(directory: Path) -> None:
    """Write tokenizer and weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def cached(root: Path | None = None) -> Path:
    """The model's directory, built if this file has changed since."""
    root = root or Path.home() / ".cache" / "headrace-tests"
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    directory = root / f"tiny-qwen3-{digest}"
    if not directory.exists():
        root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=root))
        try:
            build(work)
            work.rename(directory)
        except OSError:
            # Another test run was faster; a directory cannot be renamed onto a full one.
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return directory

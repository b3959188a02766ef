"""Everything round the conversion, with a small converter in its place, and the chat template."""

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from rich.console import Console

from workers.trial_model import CHAT_TEMPLATE, GEMMA, STOP_STRINGS, Recipe, TrialModelError, prepare

# Counts its runs beside the model's directory, and does what the file `mood` there says.
CONVERTER = """
import sys, time
from pathlib import Path
work = Path(sys.argv[1])
with (work.parent / "runs").open("a") as runs:
    runs.write("x")
print("Melting", flush=True)
(work / "model").mkdir()
(work / "model" / "weights").write_text("w" * 1000)
mood = work.parent / "mood"
if mood.exists():
    sys.exit("the crucible broke")
print("Casting", flush=True)
(work / "model" / "config.json").write_text("{}")
"""


def recipe(**changes: object) -> Recipe:
    values = {
        "name": "toy-1",
        "packages": ("sys",),
        "converter": (sys.executable, "-c", CONVERTER),
        "stages": 2,
        "needed_bytes": 1,
    }
    return Recipe(**{**values, **changes})  # type: ignore[arg-type]  # mixed on purpose


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def runs(cache_dir: Path) -> int:
    return len((cache_dir / "runs").read_text())


def test_the_model_is_made_once_and_progress_is_shown(tmp_path: Path, console: Console) -> None:
    cache_dir = tmp_path / "not" / "there"
    model_dir = prepare(cache_dir, console=console, recipe=recipe())
    assert (model_dir / "config.json").read_text() == "{}"
    assert prepare(cache_dir, console=console, recipe=recipe()) == model_dir
    assert runs(cache_dir) == 1
    assert "melting ..." in output(console)
    assert "casting ..." in output(console)
    assert "Gemma Terms of Use" in output(console)
    assert not (cache_dir / "toy-1.part").exists()


def test_a_failed_conversion_leaves_nothing_that_looks_whole(
    tmp_path: Path, console: Console
) -> None:
    (tmp_path / "mood").touch()
    with pytest.raises(TrialModelError, match="the crucible broke"):
        prepare(tmp_path, console=console, recipe=recipe())
    assert not (tmp_path / "toy-1").exists()
    (tmp_path / "mood").unlink()
    assert (prepare(tmp_path, console=console, recipe=recipe()) / "config.json").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [("weights", "w" * 999), ("config.json", "[]"), ("complete.json", "{"), ("weights", None)],
    ids=["shortened", "changed", "manifest broken", "missing"],
)
def test_a_damaged_model_is_made_again(
    tmp_path: Path, console: Console, file: str, content: str | None
) -> None:
    model_dir = prepare(tmp_path, console=console, recipe=recipe())
    if content is None:
        (model_dir / file).unlink()
    else:
        (model_dir / file).write_text(content)
    prepare(tmp_path, console=console, recipe=recipe())
    assert runs(tmp_path) == 2
    assert (model_dir / "weights").read_text() == "w" * 1000


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    consoles = [Console(file=io.StringIO()) for _ in range(2)]
    threads = [
        threading.Thread(
            target=prepare, args=(tmp_path,), kwargs={"console": c, "recipe": recipe()}
        )
        for c in consoles
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert runs(tmp_path) == 1
    assert (tmp_path / "toy-1" / "complete.json").exists()


def test_missing_packages_are_named(tmp_path: Path, console: Console) -> None:
    with pytest.raises(TrialModelError, match="no_such_package"):
        prepare(tmp_path, console=console, recipe=recipe(packages=("sys", "no_such_package")))


def test_too_little_disk_space_is_said_before_it_is_used(tmp_path: Path, console: Console) -> None:
    with pytest.raises(TrialModelError, match="GB are free"):
        prepare(tmp_path, console=console, recipe=recipe(needed_bytes=10**18))
    assert not (tmp_path / "runs").exists()


def render(*messages: dict[str, object]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, bos_token="<bos>", add_generation_prompt=True)


def test_the_template_ends_where_the_answer_begins() -> None:
    prompt = render({"role": "user", "content": "  Why? "})
    assert prompt.startswith("<bos>A conversation between")
    assert prompt.endswith("\n\nUser:\nWhy?\n\nAssistant:\n")
    # what would end an answer is what stands between the turns it is shown
    assert all(stop in prompt for stop in STOP_STRINGS)


def test_the_systems_text_leads() -> None:
    prompt = render(
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    )
    assert prompt.startswith("<bos>Be kind.\n\nBe brief.\n\nUser:\n")
    assert "A conversation between" not in prompt


def test_the_template_takes_every_role_and_shape_of_content() -> None:
    prompt = render(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "18 degrees", "tool_call_id": "1"},
        {"role": "assistant", "content": "Warm."},
        {"role": "anybody", "content": [{"type": "image_url"}]},
    )
    turns = prompt[prompt.index("User:\na") :]
    assert turns == (
        "User:\na\nb\n\nAssistant:\n\n\nUser:\n18 degrees\n\nAssistant:\nWarm.\n\n"
        "User:\n\n\nAssistant:\n"
    )


def test_the_command_says_whether_the_model_is_there(tmp_path: Path, console: Console) -> None:
    check = [sys.executable, "-m", "workers.trial_model", "check", str(tmp_path)]
    assert subprocess.run(check, check=False).returncode == 1
    prepare(tmp_path, console=console, recipe=recipe(name=GEMMA.name))
    assert subprocess.run(check, check=False).returncode == 0

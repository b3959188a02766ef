"""What the pages tell people to type is shell, names what there is, and has options that exist.

What can be run within a test is run by `tests/integration/test_documented_examples.py`.
"""

import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml
from click.testing import CliRunner

from ingress.__main__ import main
from ingress.stores.base import StoreUnavailable
from schemas import errors
from tests.fixtures.pages import DOCS, ROOT, blocks, name_of, pages, shell_commands
from tests.settings_page import commands

MAKEFILE = (ROOT / "Makefile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OURS = dict(commands())

TOOLS = {"curl", "docker", "kubectl", "helm", "make", "pip", "python", "headrace"}
PLAIN = {"cat", "cp", "export", "grep", "openssl", "sha256sum", "printf"}

TYPED = [(page, words) for page in pages() for words in shell_commands(page)]


def typed(first: str) -> list[list[str]]:
    return [words for _, words in TYPED if words[0] == first]


def test_every_block_is_shell() -> None:
    script = ""
    for page in pages():
        for block in blocks(page):
            if block.language == "sh":
                script += f"at_{len(script)}() {{ # {block}\n{block.text}\n}}\n"
    assert script
    checked = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_every_command_is_one_that_is_looked_at() -> None:
    others = [(name_of(page), words) for page, words in TYPED if words[0] not in TOOLS | PLAIN]
    assert not others
    assert {words[0] for _, words in TYPED} >= TOOLS


def ours(words: list[str]) -> list[str] | None:
    """What of a command line is one of our commands, also if it runs in a container."""
    if "headrace" in words and words[0] in {"docker", "kubectl"}:
        verb = "exec" if "exec" in words else "run"
        if verb in words:
            within = words[words.index(verb) :]
            return within[within.index("headrace") :] if "headrace" in within else None
    return words if words[0] == "headrace" else None


def check_options(path: str, words: list[str]) -> None:
    """That a command has the options that are among these words."""
    command = OURS[path]
    known = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    named = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert named <= known | {"--help"}, (path, named - known)


def our_command(words: list[str]) -> tuple[str, list[str]]:
    """Its path, such as `batch submit`, and what follows it."""
    path = ""
    for at, word in enumerate(words):
        path = f"{path} {word}".strip()
        if path in OURS:
            return path, words[at + 1 :]
    raise AssertionError(words)


def test_our_commands_have_these_options() -> None:
    found = [command for _, words in TYPED if (command := ours(words))]
    assert len(found) > 20
    for words in found:
        check_options(*our_command(words[1:]))


def test_commands_within_the_text_have_these_options() -> None:
    found = [
        shlex.split(text)
        for page in pages()
        for text in re.findall(r"`(headrace [a-z][^`]*)`", page.read_text())
    ]
    assert len(found) > 30
    for words in found:
        path = " ".join(word for word in words[1:] if re.fullmatch(r"[a-z]+", word))
        # A group may be named as a whole, and so may several words of a sentence.
        if not any(known == path or known.startswith(f"{path} ") for known in OURS):
            check_options(*our_command(words[1:]))
        elif path in OURS:
            check_options(path, words)


def test_every_command_tells_its_options() -> None:
    for path in OURS:
        told = CliRunner().invoke(main, [*path.split(), "--help"])
        assert told.exit_code == 0, told.output
        assert f"Usage: main {path}" in told.output


def make_arguments(words: list[str]) -> tuple[str, list[str]]:
    """The goal, and what it is to pass on."""
    goal, arguments = "", ""
    for word in words[1:]:
        if word.startswith("ARGS="):
            arguments = word.removeprefix("ARGS=")
        elif "=" not in word:
            goal = word
    return goal, shlex.split(arguments)


def test_goals_of_make_are_there_and_pass_on_options_that_exist() -> None:
    passed_to = {"bench": "benchmarks.peers", "chaos": "tests.chaos", "soak": "tests.chaos"}
    goals = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.M))
    found = typed("make")
    assert found
    for words in found:
        goal, arguments = make_arguments(words)
        assert goal in goals, words
        if goal == "up":
            check_options("up", arguments)
        elif arguments and goal != "test":
            check_module(passed_to[goal], arguments)


def source_of(module: str) -> str:
    """The text of a module, or of all of a package."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    path = Path(spec.origin)
    files = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
    return "".join(file.read_text() for file in files)


def check_module(module: str, words: list[str]) -> None:
    source = source_of(module)
    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    missing = {flag for flag in named if f'"{flag}"' not in source}
    assert not missing - {"--help"}, (module, missing)


def modules_run() -> Iterator[tuple[str, list[str]]]:
    for words in typed("python"):
        assert words[1] == "-m", words
        yield words[2], words[3:]
    for page in pages():
        for text in re.findall(r"`python -m ([a-z_.]+[^`]*)`", page.read_text()):
            module, *rest = shlex.split(text)
            yield module, rest


def test_modules_are_there_and_have_these_options() -> None:
    found = list(modules_run())
    assert len(found) > 8
    for module, words in found:
        check_module(module, words)


def test_what_compose_is_told_to_do_it_can() -> None:
    lines = [words[2:] for words in typed("docker") if words[1] == "compose"]
    assert len(lines) >= 5
    for words in lines:
        told = [word.partition("=")[0] for word in words if not word.startswith("-")]
        if "headrace" in told:
            told = told[: told.index("headrace")]
        verb, *services = told
        assert verb in {"up", "build", "run", "exec"}, words
        assert set(services) - {"ingress"} <= set(COMPOSE["services"]), words


def test_files_and_extras_that_commands_name_are_there() -> None:
    for page, words in TYPED:
        for word in words:
            if words[0] != "kubectl" and re.match(r"(?:deploy|docs|requirements)/", word):
                assert (ROOT / word).exists(), (name_of(page), word)
    for words in typed("pip"):
        for extra in re.findall(r"headrace\[(\w+)\]", " ".join(words)):
            assert extra in EXTRAS, words


def test_every_code_of_the_page_on_errors_has_its_status() -> None:
    told: dict[str, set[int]] = {}
    page = (DOCS / "api/errors.md").read_text()
    for codes, status in re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]+) \|", page, re.M):
        statuses = {int(one) for one in re.findall(r"\d{3}", status.partition(" on Messages")[0])}
        for code in re.findall(r"`(\w+)`", codes):
            told[code] = statuses - {529}
    known: dict[str, set[int]] = {StoreUnavailable.code: {StoreUnavailable.status}}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ServingError):
            code = getattr(kind, "code", None)
            if code is not None and kind.status != 499:
                known.setdefault(code, set()).add(kind.status)
    assert told == known

"""The dependency rule: who may import whom, which modules are pure, who may read the environment.

import-linter checks the packages against each other (contracts in pyproject.toml); the finer rules
are read off the syntax trees here, and each is shown code that breaks it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "ingress", "workers")

# Pure: given the same values, always the same result, wherever it runs.
PURE = (
    "schemas/",
    "ingress/accounts/account.py",
    "ingress/dialects/",
    "ingress/batch/input_check.py",
    "ingress/batch/lifecycle.py",
    "ingress/batch/lines.py",
    "ingress/batch/message_requests.py",
    "ingress/batch/requests_array.py",
    "ingress/batch/result_lines.py",
    "ingress/console/accounts.py",
    "ingress/console/history.py",
    "ingress/console/snapshot.py",
    "ingress/console/status.py",
    "ingress/figures.py",
    "ingress/limits/desk.py",
    "ingress/limits/periods.py",
    "ingress/limits/standing.py",
    "ingress/limits/state.py",
    "ingress/limits/window.py",
    "ingress/strict_json.py",
    "ingress/usage/lines.py",
    "ingress/usage/prices.py",
    "workers/parsing/",
)
IMPURE = (
    *("schemas/blobs/", "schemas/options.py", "schemas/process_metrics.py"),
    *("schemas/telemetry.py", "schemas/tracing/", "schemas/transport/"),
)
PURE_ALL_THE_SAME = ("schemas/transport/topology.py",)
OBJECTS = "schemas/blobs/objects.py"
TRACING = ("ingress/tracing.py", "workers/tracing.py")
IMPURE_STDLIB = {
    *("asyncio", "concurrent", "datetime", "http", "io", "logging", "multiprocessing", "os"),
    *("pathlib", "random", "secrets", "select", "selectors", "signal", "socket", "ssl"),
    *("subprocess", "tempfile", "threading", "time", "urllib", "uuid"),
}
PURE_LIBRARIES = {"msgspec", "orjson", "pydantic", "pydantic_core"}


class Import(NamedTuple):
    """One imported module, and whether the import runs when its module is loaded."""

    module: str
    eager: bool


def is_for_types(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return True
    return False


def imports_of(path: str, source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    package = path.removesuffix(".py").replace("/", ".").split(".")[:-1]
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types(outer)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [*package[: len(package) - level + 1], module] if level else [module]
                prefix = ".".join(part for part in base if part)
                # `from package import module` names a module too; a name within one does no harm
                modules = [prefix, *(f"{prefix}.{alias.name}" for alias in names)]
            case _:
                continue
        yield from (Import(module, id(node) not in lazy) for module in modules)


def is_pure(path: str) -> bool:
    if path in PURE_ALL_THE_SAME:
        return True
    return path.startswith(PURE) and not path.startswith(IMPURE)


def file_of(module: str) -> str | None:
    """The file of one of our own modules."""
    path = module.replace(".", "/")
    for candidate in (f"{path}.py", f"{path}/__init__.py"):
        if (ROOT / candidate).is_file():
            return candidate
    return None


def impurities(path: str, source: str) -> list[str]:
    found = []
    for imported in imports_of(path, source):
        top = imported.module.split(".")[0]
        if top in PACKAGES:
            target = file_of(imported.module)
            if target and not target.endswith("__init__.py") and not is_pure(target):
                found.append(imported.module)
        elif top in sys.stdlib_module_names:
            if top in IMPURE_STDLIB:
                found.append(imported.module)
        elif top not in PURE_LIBRARIES:
            found.append(imported.module)
    return found


def module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def misplaced_libraries(path: str, source: str) -> list[str]:
    found = []
    for imported in imports_of(path, source):
        top = imported.module.split(".")[0]
        if top in {"aio_pika", "aiormq", "pamqp"}:
            allowed = path.startswith("schemas/transport/rabbit")
        elif top in {"sqlalchemy", "alembic", "asyncpg", "aiosqlite"}:
            allowed = path.startswith("ingress/stores/")
        elif top == "sglang":
            allowed = path.startswith("workers/engines/sglang") and not imported.eager
        elif top == "opentelemetry":
            allowed = path in TRACING or (
                path.startswith("schemas/tracing/") and not imported.eager
            )
        elif file_of(imported.module) in TRACING:
            allowed = not imported.eager  # only who has a collector pays for it
        elif top == "obstore":
            allowed = path == OBJECTS
        elif imported.module == module_of(OBJECTS):
            allowed = not imported.eager  # only who keeps blobs in a bucket pays for it
        else:
            continue
        if not allowed:
            found.append(imported.module)
    return found


def reads_environment(path: str, source: str) -> bool:
    if path.endswith("/settings.py") or path.startswith("workers/engines/sglang"):
        return False
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in names:
                return True
            case ast.ImportFrom(module="os", names=imported):
                if any(alias.name in names for alias in imported):
                    return True
    return False


def our_files() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py")
    )


def test_the_packages_import_each_other_only_as_agreed(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", [path for path in our_files() if is_pure(path)])
def test_pure_modules_import_nothing_impure(path: str) -> None:
    assert impurities(path, (ROOT / path).read_text()) == []


def test_engine_and_broker_libraries_stay_in_their_places() -> None:
    found = {path: misplaced_libraries(path, (ROOT / path).read_text()) for path in our_files()}
    assert {path: modules for path, modules in found.items() if modules} == {}


def test_only_settings_read_the_environment() -> None:
    files = [path for path in our_files() if reads_environment(path, (ROOT / path).read_text())]
    assert files == []


@pytest.mark.parametrize(
    ("path", "source", "module"),
    [
        ("schemas/x.py", "import asyncio", "asyncio"),
        ("schemas/x.py", "import os.path", "os.path"),
        ("schemas/x.py", "def f():\n    from time import monotonic", "time"),
        ("schemas/x.py", "from schemas.transport import base", "schemas.transport.base"),
        ("schemas/x.py", "from . import telemetry", "schemas.telemetry"),
        ("schemas/x.py", "import ingress.app", "ingress.app"),
        ("schemas/transport/topology.py", "import aio_pika", "aio_pika"),
        ("ingress/dialects/x.py", "from fastapi import Request", "fastapi"),
        ("ingress/dialects/x.py", "from ..app import build_app", "ingress.app"),
        ("workers/parsing/x.py", "from uuid import uuid4", "uuid"),
    ],
)
def test_an_impurity_is_seen(path: str, source: str, module: str) -> None:
    assert is_pure(path)
    assert module in impurities(path, source)


@pytest.mark.parametrize(
    ("path", "source", "module"),
    [
        ("ingress/x.py", "import aio_pika", "aio_pika"),
        ("schemas/transport/memory.py", "from aiormq.abc import X", "aiormq.abc"),
        ("ingress/batch/runner.py", "def f():\n    import sqlalchemy.exc", "sqlalchemy.exc"),
        ("workers/render.py", "def f():\n    import sglang", "sglang"),
        ("workers/engines/sglang.py", "from sglang.srt import x", "sglang.srt"),
        ("workers/engines/sglang.py", "class A:\n    import sglang", "sglang"),
        ("schemas/blobs/location.py", "def f():\n    import obstore", "obstore"),
        ("ingress/x.py", "from schemas.blobs.objects import S3Store", "schemas.blobs.objects"),
        ("ingress/x.py", "def f():\n    import opentelemetry", "opentelemetry"),
        ("schemas/tracing/tracing.py", "import opentelemetry.trace", "opentelemetry.trace"),
        ("ingress/app.py", "from ingress.tracing import TracedApp", "ingress.tracing"),
    ],
)
def test_a_misplaced_library_is_seen(path: str, source: str, module: str) -> None:
    assert module in misplaced_libraries(path, source)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os\nx = os.getenv('A')",
        "from os import environ",
        "from os import getenv as g",
    ],
)
def test_reading_the_environment_is_seen(source: str) -> None:
    assert reads_environment("workers/consumer.py", source)
    assert not reads_environment("workers/settings.py", source)

"""The documented rules, the tests that name them, and the page that lists both.

`tests/rules/<document>.yaml` holds one rule per entry, `id: what must hold`, in our own words. A
test names the rules that it proves: `@pytest.mark.rule("chat.n-needs-capability")`. After a change,
`python -m tests.conformance` writes `docs/conformance.md` anew; a test fails while it is stale,
while a rule has no test, and while a test names a rule that does not exist.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

TESTS = Path(__file__).parent
RULES = TESTS / "rules"
PAGE = TESTS.parent / "docs" / "conformance.md"

_INTRODUCTION = """# Conformance

Every rule of the public API documents, and the tests that prove it. Generated from the tests by
`python -m tests.conformance`; do not edit.
"""


def documents() -> Mapping[str, Mapping[str, str]]:
    """Title of each document -> its rules: id -> text."""
    found = {}
    for path in sorted(RULES.glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        found[content["title"]] = content["rules"]
    return found


def rule_ids() -> set[str]:
    return {rule for rules in documents().values() for rule in rules}


def proofs() -> Mapping[str, Sequence[str]]:
    """Rule id -> the tests that name it, as `path::function`."""
    found = defaultdict(list)
    for path in sorted((*TESTS.rglob("test_*.py"), *TESTS.rglob("*_suite.py"))):
        for function, rule in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            found[rule].append(f"{path.relative_to(TESTS.parent)}::{function}")
    return found


def _marked(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Attribute)
                and decorator.func.attr == "rule"
            ):
                for argument in decorator.args:
                    yield node.name, ast.literal_eval(argument)


def page() -> str:
    """The text of `docs/conformance.md`."""
    tests = proofs()
    lines = [_INTRODUCTION]
    for title, rules in documents().items():
        lines += [f"## {title}", "", "| rule | what must hold | tests |", "|---|---|---|"]
        for rule, text in rules.items():
            names = "<br>".join(f"`{name}`" for name in tests.get(rule, ()))
            lines.append(
                f"| {rule} | {' '.join(text.split()).replace('|', chr(92) + '|')} | {names} |"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

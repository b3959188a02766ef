"""Looks through logs for what never belongs there: keys, passwords, prompts, images.

`python -m tests.secrets PATH...` searches files and folders, says what it found where (but not the
secret itself), and fails if it found any. The suite does so with the log of every process that it
starts, so that a day of tests is a day of logs searched. It knows shapes; that nothing of one given
request is left anywhere is what `tests/fixtures/canary.py` finds out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHAPES = {
    "a key of this service": rb"\bhr_[0-9A-Za-z]{8}_[0-9A-Za-z]{16,}",
    "a key as other services have them": rb"\b(?:sk|pk|rk)[-_][0-9A-Za-z_-]{8,}",
    "a key of Amazon's": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a bearer token": rb"(?i:\bbearer)\s+[0-9A-Za-z._~+/-]{4,}",
    "a token of three parts": rb"\beyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a URL with a password": rb"://(?!user:password@)[^\s/:@\"'<>]+:[^\s/@\"'<>]+@",
    "a named secret": rb"(?i:password|passwd|secret|api[-_]?key)[\"']?\s*[:=]\s*[\"']?\w{6,}",
    "an image or another file": rb"\bdata:[a-z]+/[a-z.+-]+;base64,|[0-9A-Za-z+/]{300,}",
    "a body": rb"\\?\"(?:content|messages|prompt|input|instructions|arguments|delta)\\?\"\s*:",
    "what the scripted engine is told": rb"\[\[(?:say|think|tool|fail|hang|lose|crash)[:\]]|\[\[k=",
}
"""What each looks like."""

_OUR_EXAMPLE = re.compile(rb"\s*curl -sS http")
"""What `headrace up` says one may try."""

_PATTERN = re.compile(
    b"|".join(b"(?P<s%d>%b)" % (at, shape) for at, shape in enumerate(SHAPES.values()))
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks like a secret.

    Attributes:
        what: One of `SHAPES`.
    """

    what: str
    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def search(paths: Iterable[Path]) -> Iterator[Finding]:
    """Look through files, and all files of folders."""
    names = list(SHAPES)
    for path in paths:
        files = sorted(found for found in path.rglob("*") if found.is_file())
        for file in files if path.is_dir() else [path]:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if _OUR_EXAMPLE.match(line):
                        continue
                    for found in _PATTERN.finditer(line):
                        assert found.lastgroup is not None
                        yield Finding(names[int(found.lastgroup[1:])], file, number)


def main(arguments: list[str]) -> int:
    findings = list(search(map(Path, arguments)))
    for finding in findings:
        print(finding)  # noqa: T201 - it is a command
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

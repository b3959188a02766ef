"""What a run has shown: as JSON, as Markdown, and as rows of the page in docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

_BEGIN = "<!-- figures: written by `python -m tests.chaos report`, do not edit -->"
_END = "<!-- /figures -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """One thing that must hold."""

    text: str
    holds: bool
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """One scenario's run.

    Attributes:
        figures: What was measured, by name, in the order of telling.
        tables: Title -> rows of cells, the first of them the head.
        examples: The first answers that were not as unharmed.
        injuries: What was done, in order.
        alarms: What the processes logged as errors of their own.
    """

    scenario: str
    engine: str
    seed: int
    settings: dict[str, Any]
    began: str
    duration_s: float = 0.0
    invariants: list[Invariant] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    injuries: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return bool(self.invariants) and all(invariant.holds for invariant in self.invariants)

    def require(self, text: str, holds: bool, detail: str = "") -> None:
        """State an invariant and whether it held."""
        self.invariants.append(Invariant(text=text, holds=holds, detail=detail))

    def write(self, base: Path) -> None:
        """Write `base.json` and `base.md`."""
        base.parent.mkdir(parents=True, exist_ok=True)
        base.with_name(base.name + ".json").write_bytes(
            orjson.dumps({**asdict(self), "holds": self.holds}, option=orjson.OPT_INDENT_2)
        )
        base.with_name(base.name + ".md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        lines = [
            f"# {self.scenario}, {self.engine}, seed {self.seed}",
            "",
            f"Begun {self.began}, {self.duration_s:.0f} s. **{_verdict(self.holds)}**",
            "",
            "Settings: " + ", ".join(f"{name} {value}" for name, value in self.settings.items()),
            "",
            "| must hold | | |",
            "| - | - | - |",
            *(f"| {i.text} | {_verdict(i.holds)} | {_cell(i.detail)} |" for i in self.invariants),
            "",
            "| figure | |",
            "| - | - |",
            *(f"| {name} | {_cell(value)} |" for name, value in self.figures.items()),
        ]
        for title, rows in self.tables.items():
            head, *body = rows
            lines += ["", f"## {title}", "", _row(head), _row(["-"] * len(head))]
            lines += [_row(row) for row in body]
        for title, items in (
            ("Not as unharmed (the first ones)", self.examples),
            ("Errors in the logs (the first ones)", self.alarms),
            ("Injuries", self.injuries),
        ):
            if items:
                lines += ["", f"## {title}", "", "```", *items, "```"]
        return "\n".join(lines) + "\n"


def load(path: Path) -> Report:
    """Read a report back."""
    value = orjson.loads(path.read_bytes())
    value.pop("holds")
    invariants = [Invariant(**invariant) for invariant in value.pop("invariants")]
    return Report(**value, invariants=invariants)


def write_page(reports: Sequence[Report], page: Path = PAGE) -> None:
    """Replace the figures of the page by those of these reports."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for figures")
    page.write_text(f"{before}{_BEGIN}\n\n{figures(reports)}\n{_END}{after}", encoding="utf-8")


def figures(reports: Sequence[Report]) -> str:
    """A section per report, without its tables: they are for whoever looks for a fault."""
    sections = []
    for report in reports:
        rows = [["must hold", "", ""]]
        rows += [[i.text, _verdict(i.holds), i.detail] for i in report.invariants]
        section = [
            f"### `{report.scenario}`, {report.engine} engine, seed {report.seed}",
            "",
            f"{report.began[:10]}, {report.duration_s / 60:.0f} minutes: "
            + ", ".join(f"{name} {value}" for name, value in report.settings.items())
            + ".",
            "",
            _row(rows[0]),
            _row(["-"] * 3),
            *(_row([_cell(cell) for cell in row]) for row in rows[1:]),
            "",
            "| figure | |",
            "| - | - |",
            *(_row([name, _cell(value)]) for name, value in report.figures.items()),
            "",
        ]
        sections.append("\n".join(section))
    return "\n".join(sections)


def _verdict(holds: bool) -> str:
    return "holds" if holds else "FAILS"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")

"""Bars as SVG, by hand: a plot of a dozen values is smaller so than by any library. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.peers.figures import Figure, Row, written

_WIDTH, _LEFT, _RIGHT, _BAR, _HEAD = 720, 160, 130, 18, 34
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-weight:600}.o{fill:#0969da}"
    ".p{fill:#afb8c1}.n{fill:#6e7781}@media(prefers-color-scheme:dark){text{fill:#e6edf3}"
    ".p{fill:#484f58}.n{fill:#8b949e}}"
)


def bars(panels: Sequence[tuple[Figure, Sequence[Row]]], *, title: str) -> str:
    """One panel of bars below the other, each on a logarithmic scale of its own."""
    parts: list[str] = []
    top = 24
    for figure, rows in panels:
        unit = f", {figure.unit}" if figure.unit else ""
        better = "more" if figure.more else "less"
        parts.append(
            f'<text class="t" x="8" y="{top + 16}">{escape(figure.title + unit)}'
            f" ({better} is better)</text>"
        )
        top += _HEAD - 8
        scale = _scale([row.value for row in rows])
        for row in rows:
            parts += _bar(row, top, scale(row.value))
            top += _BAR
        top += 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<text class="t" x="8" y="16">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _bar(row: Row, top: int, length: float) -> list[str]:
    ours = "o" if row.target.startswith("headrace") else "p"
    ratio = f" ({written(row.ratio, 'x')})" if row.ratio is not None else ""
    return [
        f'<text x="{_LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(row.target)}</text>',
        f'<rect class="{ours}" x="{_LEFT}" y="{top + 3}" width="{length:.1f}" height="12" rx="2"/>',
        f'<text class="n" x="{_LEFT + length + 6:.1f}" y="{top + 13}">'
        f"{written(row.value)}{ratio}</text>",
    ]


def _scale(values: Sequence[float | None]) -> Callable[[float | None], float]:
    """Lengths of bars: a tenfold value is longer by the same everywhere; no value has none."""
    there = [value for value in values if value is not None and value > 0]
    if not there:
        return lambda _: 0.0
    # The least has a bar that can be seen, and what differs little is not made to look far apart.
    low = math.log10(min(there)) - 0.5
    span = max(math.log10(max(there)) - low, 1.0)
    room = _WIDTH - _LEFT - _RIGHT

    def length(value: float | None) -> float:
        return room * (math.log10(value) - low) / span if value is not None and value > 0 else 0.0

    return length

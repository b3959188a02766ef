"""What a check finds: how it stands, and what to do.

Pure values. No text of a finding has anything of a key, a password or a prompt in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report.

    Attributes:
        about: What was looked at, such as `broker` or `model`.
        state: `warn` is what works and should not stay so; with `fail` the process would not start,
            or not do what it is for.
        text: What was found.
        advice: What to do; "" where there is nothing to be done.
    """

    about: str
    state: State
    text: str
    advice: str = ""


def ok(about: str, text: str) -> Finding:
    return Finding(about=about, state="ok", text=text)


def warn(about: str, text: str, advice: str) -> Finding:
    return Finding(about=about, state="warn", text=text, advice=advice)


def fail(about: str, text: str, advice: str) -> Finding:
    return Finding(about=about, state="fail", text=text, advice=advice)


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.state == "fail" for finding in findings)


SKEW_WARN_S = 1.0
SKEW_FAIL_S = 30.0


def clock_finding(about: str, ahead_s: float, whose: str, *, exact_to_s: float = 0.0) -> Finding:
    """What a difference between two clocks means.

    Args:
        about: What was looked at.
        ahead_s: Of this machine's, before the other.
        whose: The other.
        exact_to_s: What cannot be told from no difference.
    """
    off = max(0.0, abs(ahead_s) - exact_to_s)
    if off <= SKEW_WARN_S:
        return ok(about, f"this machine's clock and {whose} agree within {SKEW_WARN_S:g} s")
    text = f"this machine's clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
    advice = "Set both by NTP (timedatectl, chronyc tracking): deadlines and leases depend on it."
    return (fail if off > SKEW_FAIL_S else warn)(about, f"{text} {whose}", advice)

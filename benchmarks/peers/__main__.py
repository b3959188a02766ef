"""The command: what to measure, for how long, and where to tell of it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.load import BadReply
from benchmarks.peers import report
from benchmarks.peers.base import ROOT, Site, Unavailable
from benchmarks.peers.bench import Bench, measured
from benchmarks.peers.client_check import compare
from benchmarks.peers.direct import Direct
from benchmarks.peers.measures import MEASURES
from benchmarks.peers.plan import Length, chosen
from benchmarks.peers.registry import PEERS
from benchmarks.processes import console

_QUICK = Length(rounds=1, seconds=0.4)


def _check_client(names: Sequence[str], *, environments: Path, logs: Path | None) -> None:
    peers = [peer for peer in PEERS if peer.name in names or peer is Direct]
    with ExitStack() as stack:
        place = logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place.mkdir(parents=True, exist_ok=True)
        site = Site(stack, place, environments=environments, amqp_url=None)
        bench = Bench(site)
        try:
            with console.status("starting what is loaded"):
                bench.start(peers, site)
            with console.status("loading it, by our client and by AIPerf"):
                table = compare([*bench.targets.values()], site)
        except (BadReply, Unavailable) as error:
            raise click.ClickException(str(error)) from None
    console.print(table)


class _Names(click.ParamType[tuple[str, ...]]):
    """A list of names with commas between them."""

    name = "names"

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = tuple(filter(None, value.split(","))) if isinstance(value, str) else value
        if unknown := [name for name in names if name not in self._known]:
            self.fail(f"{unknown[0]} is none of {', '.join(self._known)}", param, ctx)
        return names


_PEER_NAMES = _Names([peer.name for peer in PEERS])
_MEASURE_NAMES = _Names([*(m.name for m in MEASURES), *dict.fromkeys(
    word for measure in MEASURES for word in measure.tells)])  # fmt: skip


def _length(
    quick: bool, minutes: float | None, rounds: int | None, seconds: float | None
) -> Length | float:
    """How long a run is to be, from what was asked for.

    Raises:
        click.UsageError: More was asked for than goes together.
    """
    if sum((quick, minutes is not None, rounds is not None or seconds is not None)) > 1:
        raise click.UsageError("one of --quick, --minutes, or --rounds and --seconds")
    if quick:
        return _QUICK
    if minutes is not None:
        return minutes
    return Length(rounds=rounds or 2, seconds=seconds or 1.2)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=_PEER_NAMES, default=(),
              help="Measure only these, and the engine; commas between names.")  # fmt: skip
@click.option("--without", type=_PEER_NAMES, default=(), help="Measure all but these.")
@click.option("--measures", "wanted", type=_MEASURE_NAMES, default=(),
              help="Take only these measures, by name or by what they tell: cpu, ttft, "
              "transit.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True),
              help="Measure for so long: as many rounds as fit, at least one.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1),
              help="Turns of every target in every measure.  [default: 2]")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0.1),
              help="Length of each phase of a turn.  [default: 1.2]")  # fmt: skip
@click.option("--quick", is_flag=True,
              help="One short round: shows that it works, measures little.")  # fmt: skip
@click.option("--ratio-to", default="headrace", show_default=True, metavar="NAME",
              help="Whose figures all others are divided by.")  # fmt: skip
@click.option("--json", "raw", type=click.Path(dir_okay=False, path_type=Path),
              default=ROOT / "dist/bench.json",
              help="Write all that was seen to this file.  [default: dist/bench.json]")  # fmt: skip
@click.option("--from", "earlier", multiple=True,
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Measure nothing, tell of this file; of several the last of each "
              "measure.")  # fmt: skip
@click.option("--write", is_flag=True, help="Put the figures into docs/performance.md and plots.")
@click.option("--environments", default=ROOT, type=click.Path(file_okay=False, path_type=Path),
              help="Where .venv-peers and .venv-dynamo are.  "
              "[default: this repository]")  # fmt: skip
@click.option("--amqp-url", help="Use this broker, not throwaway ones; its CPU is not counted.")
@click.option("--logs", type=click.Path(file_okay=False, path_type=Path),
              help="Keep configurations and logs of all that is started here.")  # fmt: skip
@click.option("--check-client", is_flag=True,
              help="Measure nothing; hold our client against AIPerf, by default before the engine "
              "and `bare`.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="Of the order of turns.")
def main(
    only: tuple[str, ...],
    without: tuple[str, ...],
    wanted: tuple[str, ...],
    minutes: float | None,
    rounds: int | None,
    seconds: float | None,
    quick: bool,
    ratio_to: str,
    raw: Path,
    earlier: tuple[Path, ...],
    write: bool,
    environments: Path,
    amqp_url: str | None,
    logs: Path | None,
    check_client: bool,
    seed: int,
) -> None:
    """Measure the service beside its peers, all before the same scripted engine.

    Needs `rabbitmq-server` on this machine (or --amqp-url) and the `test` extra; for the peers see
    docs/performance.md. Let nothing else run meanwhile. Ctrl-C ends it early and tells what was
    seen.
    """
    # However it is ended, it ends what it has started, and tells what it has seen.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    length = _length(quick, minutes, rounds, seconds)
    if check_client:
        _check_client(only or ("bare",), environments=environments, logs=logs)
        return
    if earlier:
        run = report.read(earlier)
    else:
        peers = [
            peer
            for peer in PEERS
            if peer.name not in without and (not only or peer.name in only or peer is Direct)
        ]
        try:
            run = measured(
                peers,
                chosen(MEASURES, wanted),
                length=length,
                seed=seed,
                reference=ratio_to,
                environments=environments,
                amqp_url=amqp_url,
                logs=logs,
            )
        except BadReply as error:
            raise click.ClickException(str(error)) from None
        report.save(run, raw)
    if run.void is not None:
        raise click.ClickException(f"a reply was wrong, so nothing is reported: {run.void}")
    report.show(run)
    if not earlier:
        console.print(f"All that was seen is in {raw}.", highlight=False)
    if write:
        report.write(run)


if __name__ == "__main__":
    main()

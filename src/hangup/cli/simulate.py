"""`hangup simulate`: runs loads and policies through the simulator."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from hangup.config import Settings
from hangup.config.load import load
from hangup.errors import HangupError
from hangup.sim import report, traces
from hangup.sim.engine import EngineModel
from hangup.sim.load import Arrivals, ClientHabits, Load
from hangup.sim.policies import BASELINES, HANGUP, JOBS
from hangup.sim.sharing import SharingModel
from hangup.sim.study import Plan, Row, study

_EXAMPLES = """\
examples:
  hangup simulate
      a synthetic chat load on one engine, from 0.7 to 10 times its capacity
  hangup simulate --trace AzureLLMInferenceTrace_conv.csv --policy hangup,router,direct --plot overload.html
      prompt and answer lengths from a real trace; compare with a queue of 60 s and with no gateway at all
  hangup simulate --trace mine.jsonl --arrivals trace --load 1 --backends 1,2,4,8
      how many backends do I need?
  hangup simulate --config hangup.toml --set queue_s=2,5,10,20 --load 1,2
      which queue timeout suits my traffic?
  hangup simulate --policy hangup,direct --hang-ups 0.5 --engine deaf=true
      what does an engine cost that ignores hang-ups? (the simulator does not include the reaper)
  hangup simulate --policy hangup,jobs --streams 1 --load 0.3,0.5,0.7,0.9
      how much idle capacity can jobs use, and do clients notice?
  hangup simulate --gateways 1,2,8,64 --backends 8 --slots 8 --engine slots=8 --load 3
      what do several gateways cost? Add --gateway-deaths 6 --hub-loss 0.01 for a bad day
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        description="Runs the gateway's own admission in virtual time: simulated clients with patience, hang-ups and "
        "retries in front of simulated engines. Goodput counts tokens that reached a connected client, relative to the bound "
        "min(load, 1) · G*, where G* is the highest rate that the engines sustain.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--trace", type=Path, metavar="PATH", help="Azure CSV, Mooncake JSONL, or a ServeGen folder (default: synthetic)")
    add(
        "--arrivals",
        choices=["gamma", "trace"],
        default="gamma",
        help="random gaps, or the trace's own times, scaled (default: gamma)",
    )
    add("--cv", type=float, default=1.0, metavar="X", help="coefficient of variation of random gaps; 1 is Poisson (default: 1)")
    add(
        "--load",
        type=_numbers,
        default=[0.7, 0.9, 1, 1.5, 2, 3, 5, 10],
        metavar="X,…",
        help="load relative to the engines' capacity",
    )
    add("--policy", type=_names, default=[HANGUP], metavar="NAME,…", help=_list_policies())
    add("--config", type=Path, metavar="FILE", help="the gateway's configuration, as for `hangup serve`")
    add("--set", type=_assignment, metavar="LIMIT=X,…", help="try several values of one limit")
    add("--engine", type=_names, default=[], metavar="KEY=VALUE,…", help="the engine model: " + _list_engine())
    add(
        "--backends", type=_counts, default=[1], metavar="N,…", help="number of engines; with --rate, finds how many are needed"
    )
    add("--gateways", type=_counts, default=[1], metavar="N,…", help="number of gateways in front of them (default: 1)")
    add("--slots", type=int, metavar="N", help="calls that the gateways send to an engine at a time; 0: learned (default: 0)")
    add("--rate", type=float, metavar="X", help="calls per second, instead of --load")
    add("--calls", type=int, default=5000, metavar="N", help="calls counted per run at a load of 1 (default: 5000)")
    add("--seed", type=_counts, default=[1], metavar="N,…", help="random seeds; several seeds give means (default: 1)")
    crowd = parser.add_argument_group("clients")
    defaults = ClientHabits()
    for field in dataclasses.fields(ClientHabits):
        default = getattr(defaults, field.name)
        flag = "--" + _FLAGS.get(field.name, field.name.replace("_", "-"))
        crowd.add_argument(flag, dest=field.name, type=type(default), default=default, metavar="X", help=_CROWD[field.name])
    _add_sharing(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    out.add_argument("--plot", type=Path, metavar="FILE", help="goodput, waste, refusals and TTFT against load (.png, .html)")
    out.add_argument(
        "--enough",
        type=float,
        default=0.99,
        metavar="SHARE",
        help="share of calls served that counts as enough, with --rate (default: 0.99)",
    )
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def _add_sharing(parser: Any) -> None:
    add, defaults = parser.add_argument_group("several gateways").add_argument, SharingModel()
    add(
        "--hub",
        choices=["workers", "hosts", "none"],
        default="workers",
        help="what they share slots and quotas through: a hub that sees a process end (workers), a hub that notices silence "
        "(hosts), or none (default: workers)",
    )
    add("--hub-delay", type=float, default=defaults.delay_s, metavar="S", help="of a message on average (default: 0.0005)")
    add("--hub-loss", type=float, default=0.0, metavar="SHARE", help="share of messages that are lost (default: 0)")
    add("--gateway-deaths", type=float, default=0.0, metavar="X", help="deaths a minute, of all gateways together (default: 0)")


_FLAGS = {"hang_up_share": "hang-ups", "deadline_share": "told", "stream_share": "streams"}
_CROWD = {
    "stream_share": "share of calls that stream (default: 0.7)",
    "first_token_s": "median patience for the first token of a stream (default: 10)",
    "whole_s": "median patience for a non-streaming answer (default: 40)",
    "spread": "sigma of the logarithm of both; 0 makes all clients equal (default: 0.5)",
    "deadline_share": "share of clients that send their deadline (default: 0)",
    "hang_up_share": "share of streams whose client hangs up midway (default: 0)",
    "slow_readers": "share of streams whose client reads at a fifth of the speed (default: 0)",
    "embeddings": "share of calls that only read a prompt, such as embeddings (default: 0)",
    "images": "share of calls with an image, which takes long to prefill and does not show in the text's length (default: 0)",
    "retries": "retries of a failed call, with the backoff of the SDKs (default: 2)",
    "heavy_tenant": "share of calls from one tenant; nine others share the rest (default: 0)",
}


def _list_policies() -> str:
    baselines = "; ".join(f"{name} ({doc})" for name, (doc, _) in BASELINES.items())
    return f"{HANGUP}; {JOBS} (hangup, with job items always queued); or a baseline: {baselines}"


def _list_engine() -> str:
    return ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(EngineModel)).replace("%", "%%")


def run(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        report.check_plot(arguments.plot)
    plans = list(_plans(arguments))
    bar = _StudyProgress(sum(len(plan.loads) * len(plan.policies) * len(plan.seeds) for _, plan in plans), arguments.quiet)
    rows: list[Row] = []
    for label, plan in plans:
        found = study(plan, bar.show)
        rows += [dataclasses.replace(row, policy=f"{row.policy} {label}") if label else row for row in found]
    bar.clear()
    print(report.as_json(rows) if arguments.json else report.table(rows))
    if not arguments.json:
        for sentence in report.sentences(rows, arguments.enough if arguments.rate is not None else None):
            print(sentence)
    if arguments.plot is not None:
        report.plot(rows, arguments.plot)
        print(f"hangup: wrote {arguments.plot}", file=sys.stderr)
    return 0


def _plans(arguments: argparse.Namespace) -> Any:
    known = [HANGUP, JOBS, *BASELINES]
    unknown = [name for name in arguments.policy if name not in known]
    if unknown:
        raise HangupError(f"--policy: unknown policy {unknown[0]}; choose from {', '.join(known)}")
    requests = traces.read(arguments.trace, arguments.seed[0]) if arguments.trace else traces.synthetic(arguments.seed[0])
    crowd = ClientHabits(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(ClientHabits)})
    simulated = Load(requests, crowd, Arrivals(arguments.arrivals, arguments.cv))
    flags = {"slots": arguments.slots} if arguments.slots is not None else {}
    settings = load(arguments.config, os.environ, flags).settings
    base = Plan(
        load=simulated,
        settings=settings,
        model=_engine(arguments.engine),
        loads=arguments.load,
        policies=arguments.policy,
        sharing=_sharing(arguments),
        calls=arguments.calls,
        seeds=arguments.seed,
    )
    for backends, gateways in itertools.product(arguments.backends, arguments.gateways):
        for label, changed in _variants(settings, arguments.set):
            plan = dataclasses.replace(base, backends=backends, gateways=gateways, settings=changed)
            if arguments.rate is not None:
                plan = dataclasses.replace(plan, rate=arguments.rate)
            yield label, plan


def _sharing(arguments: argparse.Namespace) -> SharingModel | None:
    delay_s, loss, deaths = arguments.hub_delay, arguments.hub_loss, arguments.gateway_deaths
    if delay_s < 0 or not 0 <= loss < 1 or deaths < 0:
        raise HangupError("--hub-delay and --gateway-deaths must not be negative, --hub-loss must be from 0 to below 1")
    if arguments.hub == "none":
        if deaths:
            raise HangupError("--gateway-deaths needs a hub: choose --hub workers or --hub hosts")
        return None
    if deaths and JOBS in arguments.policy:
        raise HangupError("--gateway-deaths cannot be simulated with --policy jobs")
    return SharingModel(delay_s, loss, deaths, by_silence=arguments.hub == "hosts")


def _variants(settings: Settings, assignment: tuple[str, list[float]] | None) -> Any:
    if assignment is None:
        yield "", settings
        return
    name, values = assignment
    if not hasattr(settings.limits, name):
        raise HangupError(f"--set: unknown limit {name}; see `hangup docs configuration`")
    kind = type(getattr(settings.limits, name))
    for value in values:
        limits = dataclasses.replace(settings.limits, **{name: kind(value)})
        yield f"{name}={value:g}", dataclasses.replace(settings, limits=limits)


def _engine(pairs: list[str]) -> EngineModel:
    known: dict[str, Any] = {name: type(value) for name, value in dataclasses.asdict(EngineModel()).items()}
    values: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in known:
            raise HangupError(f"--engine: unknown key {name}; choose from {', '.join(known)}")
        try:
            values[name] = value.lower() in ("1", "true", "yes") if known[name] is bool else known[name](value)
        except ValueError:
            raise HangupError(f"--engine: {name} must be a number, not {value!r}") from None
    return EngineModel(**values)


class _StudyProgress:
    """Shows progress on stderr, if it is a terminal."""

    def __init__(self, runs: int, quiet: bool) -> None:
        self._enabled = not quiet and sys.stderr.isatty()
        self._runs = runs
        self._done = 0

    def show(self, what: str, share: float) -> None:
        self._done += share >= 1
        if self._enabled:
            done_share = min((self._done + (share if share < 1 else 0)) / self._runs, 1.0)
            sys.stderr.write(f"\r\033[K{'█' * int(done_share * 30):<30} {done_share:4.0%}  {what}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._enabled:
            sys.stderr.write("\r\033[K")


def _numbers(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if any(value <= 0 for value in values):
        raise argparse.ArgumentTypeError("must be above 0")
    return values


def _counts(text: str) -> list[int]:
    values = [int(part) for part in text.split(",")]
    if any(value < 1 for value in values):
        raise argparse.ArgumentTypeError("must be at least 1")
    return values


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _assignment(text: str) -> tuple[str, list[float]]:
    name, found, values = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError("expected LIMIT=VALUE,VALUE,…")
    return name.strip(), [float(part) for part in values.split(",")]

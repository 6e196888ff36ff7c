"""`hangup probe URL`: finds out what an endpoint does when its clients hang up."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from hangup.cli.probe_parts.outputs import add_outputs, check_outputs, write_outputs
from hangup.cli.probe_parts.screen import ProbeScreen
from hangup.cli.table import printable
from hangup.errors import ConfigError

_EXAMPLES = """\
examples:
  hangup probe http://127.0.0.1:8000                                      an engine
  hangup probe http://127.0.0.1:8080 --engine-metrics http://gpu1:8000    a gateway, with the figures of the engine behind it
  hangup probe http://127.0.0.1:8000 --cases stream,whole-fin --json -    some cases, as JSON
  hangup probe http://127.0.0.1:8000 --fail-on any --junit probe.xml      in CI
  hangup probe http://127.0.0.1:8000 --rate 20000 --price 2               what that costs a day
  hangup probe --matrix endpoints.toml --html probe.html                  several endpoints, side by side

Exit status: 0 done, 1 a verdict named by --fail-on, 2 the endpoint cannot be probed. More: `hangup docs probe`.
"""
_VERDICTS = ("broke", "never", "partly", "late", "untold")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "probe",
        description="Plays clients that hang up, in every phase of a call, against an engine, a gateway or a chain of them. It "
        "says for each whether the engine stopped, when, and how many tokens it computed for nobody.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="URL of the endpoint")
    parser.add_argument("--model", default="", metavar="NAME", help="model to ask for (default: the first one listed)")
    parser.add_argument(
        "--api",
        default="",
        metavar="NAME",
        help="openai, anthropic, ollama, llamacpp, tgi, openai-completions, openai-responses (default: find out)",
    )
    parser.add_argument("--api-key-env", default="", metavar="NAME", help="environment variable that holds the API key")
    parser.add_argument(
        "--engine-metrics", default="", metavar="URL", help="URL of the engine behind the endpoint, or of its page with figures"
    )
    parser.add_argument("--cases", default="", metavar="NAMES", help="names or beginnings of names, separated by commas")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    parser.add_argument("--within", type=float, default=1.0, metavar="S", help="a stop after more seconds is late (default: 1)")
    parser.add_argument(
        "--rest", type=float, default=3.0, metavar="S", help="seconds of answer that are left when clients leave (default: 3)"
    )
    parser.add_argument(
        "--slots", type=int, default=0, metavar="N", help="calls that the engine runs at once (default: find out)"
    )
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="clients at once, a storm aside (default: 8)")
    parser.add_argument("--storm", type=int, default=32, metavar="N", help="clients of a storm, at most (default: 32)")
    parser.add_argument("--max-calls", type=int, default=1_000, metavar="N", help="budget (default: 1000)")
    parser.add_argument(
        "--max-tokens", type=int, default=150_000, metavar="N", help="budget, prompts included (default: 150000)"
    )
    parser.add_argument("--max-seconds", type=float, default=600.0, metavar="S", help="budget (default: 600)")
    parser.add_argument(
        "--yes", action="store_true", help="do not ask before probing an endpoint that is not on a private network"
    )
    parser.add_argument("--ca-file", default="", metavar="FILE", help="certificates to trust, for https")
    parser.add_argument("--insecure", action="store_true", help="do not check the certificate")
    parser.add_argument("--rate", type=float, default=0.0, metavar="N", help="your clients that hang up, per day")
    parser.add_argument("--price", type=float, default=0.0, metavar="P", help="your price of a million output tokens")
    parser.add_argument(
        "--fail-on", default="", metavar="LIST", help=f"exit with 1 on these: {', '.join(_VERDICTS)}; any: all but untold"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--matrix", metavar="FILE", help="probe the endpoints of a TOML file, one after another")
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from hangup.probe.report import Traffic  # noqa: PLC0415 - other commands need not pay for it

    if arguments.list:
        return _list()
    fail_on = _fail_on(arguments.fail_on)
    every = _options(arguments)
    screen = ProbeScreen(quiet=arguments.quiet)
    try:
        reports, failed = asyncio.run(_probe(every, arguments.yes, arguments.price, screen))
    except asyncio.CancelledError:  # by SIGTERM
        return 128 + signal.SIGTERM
    finally:
        screen.finish()
    if not reports:
        raise ConfigError(failed)
    for problem in failed:
        print(f"hangup: {printable(problem)}", file=sys.stderr)
    write_outputs(arguments, reports, Traffic(arguments.rate, arguments.price))
    results = [result for report in reports for result in report.results]
    is_failure = any(result.judgement.ruling.name.lower() in fail_on and _matters(result) for result in results)
    return 1 if is_failure else 2 if failed else 0


def _matters(result: Any) -> bool:
    return bool(result.case.counts or result.is_fault)


def _list() -> int:
    from hangup.cli.table import table  # noqa: PLC0415
    from hangup.probe.cases import CASES  # noqa: PLC0415

    rows = [[case.name, case.text, "yes" if case.counts else "no, shown only"] for case in CASES.values()]
    print("\n".join(table(["CASE", "THE CLIENT LEAVES", "COUNTS"], rows)))
    return 0


def _fail_on(text: str) -> set[str]:
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - {*_VERDICTS, "any"}:
        raise ConfigError([f"--fail-on: {', '.join(sorted(unknown))}: choose from {', '.join(_VERDICTS)}, any"])
    return (names | set(_VERDICTS[:-1])) - {"any"} if "any" in names else names


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _options(arguments: argparse.Namespace) -> list[Any]:
    """Return what to probe, and how; raise `ConfigError` with everything that is wrong."""
    from hangup.probe.cases import choose  # noqa: PLC0415
    from hangup.probe.matrix import MatrixEntry, read_matrix  # noqa: PLC0415

    problems = check_outputs(arguments)
    if bool(arguments.url) == bool(arguments.matrix):
        problems.append("give the URL of one endpoint, for example http://127.0.0.1:8000, or --matrix FILE")
    above_0 = ("within", "rest", "clients", "storm", "max_calls", "max_tokens", "max_seconds")
    problems += [f"--{_flag(name)}: must be more than 0" for name in above_0 if not 0 < getattr(arguments, name) < 1e9]
    from_0 = ("slots", "rate", "price")
    problems += [f"--{_flag(name)}: must not be negative" for name in from_0 if not 0 <= getattr(arguments, name) < 1e15]
    try:
        cases = tuple(choose(arguments.cases))
    except ValueError as error:
        problems.append(f"--cases: {error}")
        cases = ()
    entries = []
    if arguments.matrix:
        entries = read_matrix(Path(arguments.matrix))
    elif arguments.url:
        names = ("url", "model", "api", "api_key_env", "engine_metrics", "slots")
        entries = [MatrixEntry(**{name: getattr(arguments, name) for name in names})]
    problems += [problem for entry in entries for problem in _entry_problems(entry)]
    if problems:
        raise ConfigError(problems)
    return [_endpoint_options(arguments, entry, cases) for entry in entries]


def _entry_problems(entry: Any) -> list[str]:
    from hangup.probe.dialects import DIALECTS  # noqa: PLC0415

    problems = []
    if entry.api and entry.api not in DIALECTS:
        problems.append(f"--api: there is no {entry.api!r}; choose from {', '.join(DIALECTS)}")
    key = os.environ.get(entry.api_key_env, "") if entry.api_key_env else ""
    if entry.api_key_env and not key:
        problems.append(f"--api-key-env: the environment has no variable {entry.api_key_env}")
    elif not key.isascii() or not key.isprintable():
        problems.append(f"--api-key-env: {entry.api_key_env} holds characters that no key has")
    return problems


def _endpoint_options(arguments: argparse.Namespace, entry: Any, cases: Any) -> Any:
    from hangup.probe.budget import ProbeBudget  # noqa: PLC0415
    from hangup.probe.session import ProbeOptions  # noqa: PLC0415

    return ProbeOptions(
        url=entry.url,
        model=entry.model,
        api=entry.api,
        api_key=os.environ.get(entry.api_key_env, "") if entry.api_key_env else "",
        engine_metrics=entry.engine_metrics,
        cases=cases,
        within_s=arguments.within,
        rest_s=arguments.rest,
        slots=entry.slots,
        clients=arguments.clients,
        storm=arguments.storm,
        budget=ProbeBudget(arguments.max_calls, arguments.max_tokens, arguments.max_seconds),
        ca_file=arguments.ca_file,
        insecure=arguments.insecure,
        command=entry.command or shlex.join(["hangup", *sys.argv[1:]]),
        name=entry.name,
    )


async def _probe(every: list[Any], yes: bool, price: float, screen: ProbeScreen) -> tuple[list[Any], list[str]]:
    """Tell the budget, ask where that is due, and probe one after another; SIGTERM ends it like Ctrl-C.

    Return the reports, and what is wrong with the endpoints that cannot be probed.
    """
    from hangup.probe.endpoint import ProbeError  # noqa: PLC0415
    from hangup.probe.session import run_probe  # noqa: PLC0415

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    reports, failed = [], []
    for options in every:
        await _consent(options, yes, price)
        try:
            reports.append(await run_probe(options, screen.progress))
        except ProbeError as error:
            failed += error.problems
    return reports, failed


async def _consent(options: Any, yes: bool, price: float) -> None:
    from hangup.probe.endpoint import ASSUMED_PRICE, parse  # noqa: PLC0415
    from hangup.probe.session import is_far  # noqa: PLC0415

    endpoint, budget = parse(options.url), options.budget
    spends = f"at most {budget.calls_max:,} calls, {budget.tokens_max:,} tokens and {budget.seconds_max:g} s"
    print(f"hangup: probes {endpoint.url} with {len(options.cases)} cases: {spends}", file=sys.stderr, flush=True)
    provider = endpoint.provider
    if provider is None and not await is_far(endpoint):
        return
    where = "is not on this machine or a private network"
    if provider is not None:
        cost = budget.tokens_max * (price or ASSUMED_PRICE) / 1e6
        basis = f"{price or ASSUMED_PRICE:g} per million" + ("" if price else ", an assumption: give yours with --price")
        where = f"is {provider.title}, which bills: up to {cost:.2f} for this probe ({basis})"
    if yes:
        print(f"hangup: {endpoint.host} {where}", file=sys.stderr, flush=True)
        return
    if not sys.stdin.isatty():
        raise ConfigError([f"{endpoint.host} {where}; pass --yes if you may probe it"])
    print(f"hangup: {endpoint.host} {where}. Probe it? [y/N] ", end="", file=sys.stderr, flush=True)
    if (await _typed_line()).strip().lower() not in ("y", "yes"):
        raise ConfigError(["not probed"])


async def _typed_line() -> str:
    """Wait for a line from the terminal. A thread that reads would keep Ctrl-C from ending the command."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()

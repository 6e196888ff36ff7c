"""make judge: NVIDIA's AIPerf and GuideLLM judge an engine directly, and through nginx, LiteLLM and hangup.

The engine is the stand-in (8 slots, answers of 200 tokens, one every 20 ms). Engine and proxy are started anew for each run;
hangup has no settings. The figures are the tools' own, except what the engine computed, which it counts itself. Results go to
bench/out/judge.json and, as a table for BENCHMARKS.md, to bench/out/judge.md.

Missing programs are installed once: into bench/.envs by pip (AIPerf 1.2, LiteLLM 0.8, GuideLLM with torch 1.5 GB), and nginx by
apt-get. If one cannot be installed, the judge prints the reason and runs without it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import peers, targets
from bench.environments import NotInstalled
from bench.judge import report, tokenizer
from bench.judge.scenarios import OUTPUT_TOKENS, PREFILL_S, SCENARIOS, SLOTS, TOKEN_S, Scenario
from bench.judge.tools import MODEL, TOOLS, Tool, ToolFailed
from bench.targets import Target

_EXAMPLES = """\
examples:
  make judge                                                  all of it: 20 runs, about half an hour
  make judge ARGS="--only overload --tools aiperf"            one scenario by one judge: 4 runs
  make judge ARGS="--only healthy --paths direct hangup --seconds 20"
  make judge ARGS="--like openai"                             an engine of which nothing is known, instead of one like vLLM
"""
OUT = targets.ROOT / "bench" / "out"
Path_ = Callable[[Target], contextlib.AbstractContextManager[Target]]
PATHS: dict[str, Path_] = {
    "direct": contextlib.nullcontext,
    "nginx": lambda engine: targets.nginx(engine.port),
    "litellm": lambda engine: peers.litellm(engine.port, MODEL),
    "hangup": lambda engine: targets.hangup(engine.port),
}


def main() -> int:
    arguments = _arguments()
    folder = OUT / "judge"
    words = tokenizer.make(folder / "tokenizer")
    rows: list[dict[str, Any]] = []
    todo = [
        (tool, SCENARIOS[name].lasting(arguments.seconds), path)
        for name in arguments.only
        for tool in arguments.tools
        for path in arguments.paths
        if not (tool == "guidellm" and SCENARIOS[name].cancelled)  # it has no such option
    ]
    for number, (tool, scenario, path) in enumerate(todo, 1):
        print(f"[{number}/{len(todo)}] {tool}, {scenario.title}, {path} …", flush=True)
        place = folder / f"{tool}-{scenario.name}-{path}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        row: dict[str, Any] = {"tool": tool, "scenario": scenario.name, "path": path}
        try:
            row |= _judged(TOOLS[tool], scenario, path, arguments.like, words, place)
        except (NotInstalled, ToolFailed, RuntimeError, OSError) as error:
            row["failed"] = str(error)
        print("    " + report.line(row), flush=True)
        rows.append(row)
        _write(rows, arguments)
    missing = {row["failed"]: None for row in rows if "failed" in row}
    print("".join(f"\nnot judged: {why}" for why in missing))
    print(f"\n{report.markdown(rows)}\nwritten to {OUT / 'judge.md'} and judge.json; logs in {folder}")
    return 1 if any("failed" in row for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make judge",
        usage='make judge [ARGS="OPTIONS"]',
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def several(flag: str, choices: list[str], help: str) -> None:
        parser.add_argument(flag, nargs="+", choices=choices, default=choices, metavar="NAME", help=help)

    several("--only", list(SCENARIOS), "; ".join(f"{s.name} ({s.title})" for s in SCENARIOS.values()) + "; default: all")
    several("--tools", list(TOOLS), "aiperf, guidellm (which cannot cancel, so it sits that scenario out); default: both")
    several("--paths", list(PATHS), f"what stands before the engine: {', '.join(PATHS)}; default: all")
    parser.add_argument("--seconds", type=float, default=45.0, help="of load in each run (default: 45)")
    parser.add_argument(
        "--like",
        choices=["openai", "vllm"],
        default="vllm",
        help="what the engine looks like; openai: like nothing known (default: vllm)",
    )
    arguments = parser.parse_args()
    if arguments.seconds < 10:
        parser.error("--seconds must be at least 10: an answer takes 4 s")
    return arguments


def _judged(tool: Tool, scenario: Scenario, path: str, like: str, words: Path, folder: Path) -> dict[str, Any]:
    with _engine(like) as engine, PATHS[path](engine) as target:
        before = targets.standin_stats(engine.port)
        verdict = tool(scenario, f"http://127.0.0.1:{target.port}", words, folder)
        stats = targets.standin_stats(engine.port)
        after = _when_idle(engine.port)
    tokens = after["tokens"] - before["tokens"]
    return {
        **asdict(verdict),
        "possible": scenario.possible,
        "engine_tokens": tokens,
        "tokens_in_vain": max(tokens - verdict.completed * OUTPUT_TOKENS, 0),
        "tokens_after_gone": after["tokens_after_gone"],
        "tokens_after_all_left": after["tokens"] - stats["tokens"],
        "reached_the_engine": after["requests"] - before["requests"],
        "aborted": after["aborted"],
        "engine_queue_peak": after["waiting_peak"],
    }


@contextlib.contextmanager
def _engine(like: str) -> Iterator[Target]:
    with targets.standin(like=like, slots=SLOTS, token_s=TOKEN_S, prefill_s=PREFILL_S, queue=100_000) as engine:
        yield engine


def _when_idle(port: int, timeout_s: float = 60.0) -> dict[str, int]:
    """Return what the engine has computed once it is idle, after its clients have left."""
    deadline = time.monotonic() + timeout_s
    while True:
        stats = targets.standin_stats(port)
        if stats["running"] + stats["waiting"] == 0 or time.monotonic() > deadline:
            return stats
        time.sleep(0.5)


def _write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    result = {"date": time.strftime("%Y-%m-%d %H:%M"), "seconds": arguments.seconds, "like": arguments.like, "rows": rows}
    (OUT / "judge.json").write_text(json.dumps(result, indent=2))
    (OUT / "judge.md").write_text(report.markdown(rows))


if __name__ == "__main__":
    sys.exit(main())

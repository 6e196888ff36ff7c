"""The judges: other people's load generators, and the figures they report. Nothing here is measured by us."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environments import environment
from bench.judge.scenarios import OUTPUT_TOKENS, PROMPT_TOKENS, Scenario

MODEL = "standin"
NAN = float("nan")


class ToolFailed(RuntimeError):
    """The tool ended without a result; the message holds its last output."""


@dataclass
class Verdict:
    """A tool's result. `good_per_s` counts answers within the scenario's time."""

    completed: int
    errors: dict[str, int]
    good_per_s: float
    first_token_p50_s: float
    first_token_p99_s: float
    latency_p50_s: float
    good: int = 0  # answers within the scenario's time


def aiperf(scenario: Scenario, url: str, tokenizer: Path, folder: Path) -> Verdict:
    """Run NVIDIA's AIPerf. HF_HUB_OFFLINE must not be set: AIPerf would then take a folder's path for a name on the hub."""
    binary = environment("aiperf", "aiperf==0.13.0") / "aiperf"
    command = [str(binary), "profile", "--model", MODEL, "--tokenizer", str(tokenizer), "--url", url, "--api-key", "none"]
    command += ["--endpoint-type", "chat", "--streaming", "--extra-inputs", "ignore_eos:true", "--random-seed", "1"]
    command += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--synthetic-input-tokens-stddev", "0"]
    command += ["--output-tokens-mean", str(OUTPUT_TOKENS), "--output-tokens-stddev", "0", "--use-server-token-count"]
    command += ["--request-rate", str(scenario.rate), "--benchmark-duration", str(scenario.seconds)]
    command += ["--benchmark-grace-period", str(scenario.patience_s), "--artifact-dir", str(folder)]
    command += ["--request-timeout-seconds", str(scenario.patience_s)]
    command += ["--goodput", f"request_latency:{scenario.patience_s * 1000:g}"]
    command += ["--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"]
    if scenario.cancelled:
        command += ["--request-cancellation-rate", str(scenario.cancelled * 100)]
        command += ["--request-cancellation-delay", str(scenario.cancel_after_s)]
    environ = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    _run("aiperf", command, environ, scenario, folder)
    export = _read(folder / "profile_export_aiperf.json")
    errors: dict[str, int] = {}
    for row in export.get("error_summary") or []:
        detail = row["error_details"]
        name = str(detail.get("code") or detail.get("type") or "other")
        errors[name] = errors.get(name, 0) + int(row["count"])
    return Verdict(
        completed=int(_aiperf(export, "request_count", "avg", 0.0)),
        errors=errors,
        good_per_s=_aiperf(export, "goodput", "avg", 0.0),
        first_token_p50_s=_aiperf(export, "time_to_first_token", "p50") / 1e3,
        first_token_p99_s=_aiperf(export, "time_to_first_token", "p99") / 1e3,
        latency_p50_s=_aiperf(export, "request_latency", "p50") / 1e3,
        good=int(_aiperf(export, "good_request_count", "avg", 0.0)),
    )


def _aiperf(export: dict[str, Any], metric: str, figure: str, default: float = NAN) -> float:
    return float((export.get(metric) or {}).get(figure, default))


def guidellm(scenario: Scenario, url: str, tokenizer: Path, folder: Path) -> Verdict:
    """Run GuideLLM. It cannot cancel a share of calls; its timeout is per read, and it cancels open calls at the end."""
    binary = environment("guidellm", "guidellm==0.8.1", "torch==2.13.0") / "guidellm"
    result = folder / "guidellm.json"
    backend = f"kind=openai_http,target={url},model={MODEL},api_key=none,timeout={scenario.patience_s:g}"
    command = [str(binary), "run", "--backend", backend, "--profile", f"kind=constant,rate={scenario.rate:g}"]
    command += ["--constraint", f"kind=max_duration,seconds={scenario.seconds:g}"]
    command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
    command += ["--output", f"kind=json,path={result}", "--disable-console-interactive"]
    _run("guidellm", command, {**os.environ, "HF_HUB_OFFLINE": "1"}, scenario, folder)
    benchmark = _read(result)["benchmarks"][0]
    metrics = benchmark["metrics"]
    totals, latency = metrics["request_totals"], metrics["request_latency"]["successful"]
    first = metrics["time_to_first_token_ms"]["successful"]
    good = sum(1 for row in benchmark["requests"]["successful"] if row["request_latency"] <= scenario.patience_s)
    return Verdict(
        completed=int(totals["successful"]),
        errors={name: int(totals[name]) for name in ("errored", "incomplete") if totals[name]},
        good_per_s=good / float(benchmark["duration"]),
        first_token_p50_s=_guidellm(first, "p50") / 1e3,
        first_token_p99_s=_guidellm(first, "p99") / 1e3,
        latency_p50_s=_guidellm(latency, "p50"),
        good=good,
    )


def _guidellm(distribution: dict[str, Any], figure: str) -> float:
    return float(distribution["percentiles"][figure]) if distribution.get("count") else NAN


def _run(name: str, command: list[str], environ: dict[str, str], scenario: Scenario, folder: Path) -> None:
    log = folder / f"{name}.log"
    with log.open("w") as file:
        try:
            limit_s = scenario.seconds + scenario.patience_s + 180
            done = subprocess.run(command, env=environ, stdout=file, stderr=subprocess.STDOUT, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"{name} did not end within {limit_s:g} s: see {log}") from None
    if done.returncode:
        log_lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip(" │─╭╮╰╯")]
        raise ToolFailed(f"{name} ended with {done.returncode}: {' / '.join(log_lines[-2:])[:300]} (see {log})")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ToolFailed(f"no result was written to {path}")
    return dict(json.loads(path.read_text()))


Tool = Callable[[Scenario, str, Path, Path], Verdict]
TOOLS: dict[str, Tool] = {"aiperf": aiperf, "guidellm": guidellm}

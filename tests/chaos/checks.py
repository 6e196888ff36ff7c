"""Checks at the end: every promise was kept once, in the right shape, and billed once; and nothing is left once all is idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sqlite3
import time
from collections import Counter
from typing import Any

from chaos.client import Broken, request
from chaos.load import ENDED, Book, Promise, is_answer, streamed, words
from chaos.world import GatewayProcess, World

_FILES_MORE, _MEMORY_MB_MORE, _TASKS_MAX = 12, 100, 40
_ZERO = ("hangup_job_store_failing", "hangup_connections", "hangup_body_bytes", "hangup_media_held_bytes")
_PATHS = {"call": "/v1/jobs", "batch": "/v1/batches", "response": "/v1/responses"}
_LINE = {"id", "custom_id", "response", "error"}


async def all_promises(world: World, book: Book, timeout_s: float) -> list[str]:
    """Ask either gateway about each promise; each must have ended."""
    wrong: list[str] = []
    until = time.monotonic() + timeout_s
    ports = [gateway.port for gateway in world.gateways]
    open_ones = list(book.promises.values())
    while open_ones and time.monotonic() < until:
        still = []
        for n, promise in enumerate(open_ones):
            problems = await _promise(ports[n % 2], promise)
            if problems is None:
                still.append(promise)
            else:
                wrong += problems
        open_ones = still
        if open_ones:
            await asyncio.sleep(0.5)
    return wrong + [f"{promise.id} ({promise.kind}, {promise.items} items) has not ended" for promise in open_ones]


async def _promise(port: int, promise: Promise) -> list[str] | None:
    """Return what is wrong with the promise's job, or None if it has not ended."""
    path = f"{_PATHS[promise.kind]}/{promise.id}"
    try:
        answer = await request(port, "GET", path, timeout_s=30)
    except (Broken, TimeoutError):
        return None
    if answer.status in (502, 503):
        return None
    if answer.status != 200:
        return [f"{promise.id}: {answer.status} {answer.body[:100]!r}"]
    job = answer.json()
    if promise.kind == "response" and job["status"] == "incomplete":  # it reached its token limit
        job["status"] = "completed"
    if job["status"] not in ENDED:
        return None
    allowed = ("completed", "cancelled") if promise.cancelled else ("completed",)
    if job["status"] not in allowed:
        return [f"{promise.id} ended as {job['status']} ({job.get('cause')})"]
    if promise.kind == "response":
        return [] if job["id"] == promise.id and job["output"] else [f"{promise.id}: {str(job)[:200]}"]
    if promise.kind == "call":
        return _call(promise, job)
    return await _batch(port, promise, job)


def _call(promise: Promise, job: dict[str, Any]) -> list[str]:
    if job["status"] == "cancelled":
        return []
    result = job["result"]
    if type(result) is not dict or set(result) != {"status", "call", "body"} or result["status"] != 200:
        return [f"{promise.id} has the result {str(result)[:200]}"]
    body = result["body"]
    if type(body) is str:
        whole = "data: [DONE]" in body and streamed(body.encode()) == words(promise.model, promise.tokens)
    else:
        whole = is_answer(body, promise.model, promise.tokens)
    return [] if whole else [f"{promise.id}: not its own answer of {promise.tokens} tokens: {str(body)[:300]}"]


async def _batch(port: int, promise: Promise, batch: dict[str, Any]) -> list[str]:
    counts, lines = batch["request_counts"], []
    for name in ("output_file_id", "error_file_id"):
        if batch[name] is not None:
            answer = await request(port, "GET", f"/v1/files/{batch[name]}/content", timeout_s=30)
            lines += answer.body.splitlines()
    try:
        rows = [json.loads(line) for line in lines]
    except ValueError:
        return [f"{promise.id}: a line that is no JSON"]
    if any(set(row) != _LINE for row in rows):
        return [f"{promise.id}: a line of another shape"]
    ids = [f"r{n}" for n in range(promise.items)]
    if batch["status"] == "cancelled":
        ids = ids[: len(rows)]  # it may have been cancelled before all its lines were read
    if sorted(row["custom_id"] for row in rows) != sorted(ids):
        return [f"{promise.id}: {len(rows)} lines of {promise.items}, {counts}"]
    good = [row for row in rows if row["response"] is not None and row["response"]["status_code"] == 200]
    if not all(is_answer(row["response"]["body"], f"{promise.model} {row['custom_id']}", promise.tokens) for row in good):
        return [f"{promise.id}: an answer that is not the line's own"]
    if not promise.cancelled and len(good) != promise.items:
        bad = next(row for row in rows if row not in good)
        return [f"{promise.id}: {promise.items - len(good)} failed, such as {json.dumps(bad)[:300]}"]
    return []


async def rest(world: World, timeout_s: float = 30.0) -> list[str]:
    """Wait until gateways and engines are idle, and return what is not."""
    until = time.monotonic() + timeout_s
    while True:
        wrong = [problem for gateway in world.gateways for problem in await asyncio.to_thread(_gateway_at_rest, world, gateway)]
        for engine in (*world.sound, *world.shaky):
            stats = await asyncio.to_thread(engine.process.stats)
            if stats["running"] + stats["waiting"]:
                wrong.append(f"{engine.name} still runs {stats['running']} and queues {stats['waiting']}")
            if stats["websockets"]:
                wrong.append(f"{engine.name} still has {stats['websockets']} WebSockets")
        if not wrong or time.monotonic() > until:
            return wrong
        await asyncio.sleep(0.5)


async def idle(gateway: GatewayProcess, timeout_s: float = 30.0) -> list[str]:
    """Wait until nothing of live calls remains, whatever happened to jobs."""
    names = ("hangup_calls_live", "hangup_backend_in_flight", "hangup_queue_depth", "hangup_connections")
    until = time.monotonic() + timeout_s
    while True:
        metrics = await asyncio.to_thread(gateway.metrics)
        wrong = [f"{gateway.name}: {name} is {value:g}" for name, value in metrics.items() if name in names and value]
        if not wrong or time.monotonic() > until:
            return wrong
        await asyncio.sleep(0.5)


def _gateway_at_rest(world: World, gateway: GatewayProcess) -> list[str]:
    wrong, metrics = [], gateway.metrics()
    for name, value in metrics.items():
        left = name.startswith(("hangup_calls_live", "hangup_backend_in_flight", "hangup_queue_depth", "hangup_orphans"))
        left = left or name.startswith(("hangup_jobs{", "hangup_job_items{", "hangup_backend_quarantined", "hangup_zombies{"))
        if (left or name in _ZERO) and value:
            wrong.append(f"{gateway.name}: {name} is {value:g}")
    tasks, duties = (
        metrics["hangup_loop_tasks"],
        [n for n in metrics if n.startswith("hangup_tasks_running") and not metrics[n]],
    )
    if tasks > _TASKS_MAX:
        wrong.append(f"{gateway.name} has {tasks:g} tasks")
    wrong += [f"{gateway.name}: {name} is 0" for name in duties if not name.endswith(('"jobs"}', '"reload"}'))]
    files, most = gateway.files(), world.files[gateway.name] + _FILES_MORE
    if files > most:
        wrong.append(f"{gateway.name} has {files} files open, {world.files[gateway.name]} at the start")
    if (grown := gateway.memory_mb() - world.memory_mb[gateway.name]) > _MEMORY_MB_MORE:
        wrong.append(f"{gateway.name} takes {grown:.0f} MB more than at the start")
    return wrong


def logs(world: World) -> list[str]:
    """Check that the logs show no bug of ours, and that no sound engine was blamed."""
    wrong = []
    sound = {engine.name for engine in world.sound}
    for gateway in world.gateways:
        wrong += [f"{gateway.name}: a traceback: {line}" for line in gateway.errors() if "Traceback" in line]
        for row in gateway.log():
            if row["event"] in ("internal_error", "reaper_check_failed"):
                wrong.append(f"{gateway.name}: {row}")
            # Work that a killed gateway abandoned remains for a moment, or a little longer if the engine's counters lag.
            expected = row["event"] == "orphans_found" and gateway.deaths
            blamed = (
                row["event"] in ("zombie_found", "ladder_step_taken", "orphans_found", "divergence_alarm_changed")
                and row.get("backend") in sound
                and not expected
            )
            if blamed and row.get("step") not in ("healthy", "wait"):
                wrong.append(f"{gateway.name} blames {row['backend']}: {row}")
    return wrong


def outcomes(world: World, book: Book) -> list[str]:
    """Check that each live call has one log line, and that fully answered ones say so; a kill -9 may lose the last lines."""
    wrong = []
    for gateway in world.gateways:
        lines: dict[str, list[str]] = {}
        for row in gateway.log():
            if row["event"] == "call_ended" and row["id"][:1] in "swx":
                lines.setdefault(row["id"], []).append(row["outcome"])
        wrong += [f"{id} at {gateway.name} has the outcomes {found}" for id, found in lines.items() if len(found) > 1]
        for id in (id for at, id in book.complete if at is gateway):
            if lines.get(id, ["completed"]) != ["completed"] or (id not in lines and not gateway.deaths):
                wrong.append(f"{id} at {gateway.name} was answered in full, and its line says {lines.get(id)}")
    return wrong


def harmed(book: Book) -> list[str]:
    """Return live calls that were not fully answered, although nothing happened to their gateway or to a sound engine."""
    live = {name: count for name, count in book.outcomes.items() if name.startswith(("stream", "whole", "websocket"))}
    well = ("complete", "close", "fin", "reset")
    return [f"harmed: {count} {name}" for name, count in live.items() if not name.endswith(well)]


def cuts(book: Book) -> list[str]:
    """Check each answer that broke off: its gateway stopped, or its log line says that its engine failed."""
    wrong = []
    for gateway, id, began, ended in book.cut:
        died = max((at for at in gateway.deaths if at <= ended + 5), default=-math.inf)  # the end of a drain is recorded late
        back = max((at for at in gateway.returns if at <= began), default=0.0)
        if died >= min(back, began - 15):  # the gateway was down, or draining
            continue
        outcomes = [row["outcome"] for row in gateway.log() if row["event"] == "call_ended" and row["id"] == id]
        if outcomes != ["engine_failed"]:
            wrong.append(f"{id} at {gateway.name} was cut off, nobody had killed it, and its line says {outcomes}")
    return wrong


def bills(world: World, book: Book, *, killed: bool) -> list[str]:
    """Check, once the gateways have stopped, that each item was billed once; a killed gateway may lose its last entries."""
    billed: Counter[str] = Counter()
    for gateway in world.gateways:
        with contextlib.closing(sqlite3.connect(gateway.ledger)) as db:
            query = "SELECT model, sum(calls) FROM spent WHERE cause = 'completed' AND tokens_delivered > 0 GROUP BY model"
            for model, calls in db.execute(query):
                billed[model] += int(calls)
    wrong = []
    for promise in book.promises.values():
        count = billed[promise.model]
        few = count < promise.items and not killed and not promise.cancelled
        if count > promise.items or few:
            wrong.append(f"{promise.id}: {count} of {promise.items} items were billed")
    return wrong

"""Prometheus metrics, collected from the gateway's own counters at each scrape: nothing is counted twice, or on the hot path.

Every metric is listed in docs/metrics.md, which a test compares with this file's output.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hangup import __version__
from hangup.core.jobs import ItemState, JobStatus, Kind
from hangup.core.reaper import STEPS
from hangup.gateway.admin import call_metrics
from hangup.gateway.admin.call_metrics import histogram
from hangup.gateway.admin.view import GatewayView

_SAMPLES_PER_TURN = 300  # some 3 ms
_EOF = b"# EOF\n"  # OpenMetrics' last line


class GatewayCollector(Collector):
    def __init__(self, view: GatewayView) -> None:
        self._view = view
        self._wall_offset_s = time.time() - time.monotonic()

    def collect(self) -> Iterator[Metric]:
        yield from call_metrics.collect(self._view, self._wall_offset_s)
        yield from self._backends()
        yield from self._engines()
        yield from self._reaper()
        yield from self._jobs()
        yield from self._process()

    def _backends(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("hangup_backend_up", "1 while the backend is up.", labels=["backend"])
        in_flight = GaugeMetricFamily(
            "hangup_backend_in_flight",
            "Calls that hold a place at the backend: running, or ended and not yet released by the engine.",
            labels=["backend"],
        )
        limit = GaugeMetricFamily(
            "hangup_backend_limit",
            "Most calls at the backend at a time, configured or learned; +Inf while nothing shows that it queues.",
            labels=["backend"],
        )
        limited = GaugeMetricFamily(
            "hangup_backend_limited_by",
            "1 by evidence for the limit: slots, late_first_tokens, engine_reports_waiting, engine_refused, slow_steps, none.",
            labels=["backend", "by"],
        )
        for load in self._view.loads():
            up.add_metric([load.name], load.health.up)
            in_flight.add_metric([load.name], load.in_flight)
            limit.add_metric([load.name], math.inf if load.is_open and load.limit else load.limit)
            limited.add_metric([load.name, load.limited_by], 1)
        yield from (up, in_flight, limit, limited)

    def _engines(self) -> Iterator[Metric]:
        computed = CounterMetricFamily(
            "hangup_backend_tokens_computed",
            "Tokens that the engine reports as computed, counted since this gateway started.",
            labels=["backend"],
        )
        busy = GaugeMetricFamily(
            "hangup_backend_busy_ratio",
            "How busy the engine is, from 0 to 1, where busy_from or the engine reports it.",
            labels=["backend"],
        )
        used = CounterMetricFamily(
            "hangup_backend_used_seconds",
            "Time during which the backend ran this gateway's calls; its share where others ran theirs.",
            labels=["backend"],
        )
        alarm = GaugeMetricFamily(
            "hangup_divergence_alarm", "1 while the engine computes tokens that nobody receives.", labels=["backend"]
        )
        quarantined = GaugeMetricFamily(
            "hangup_backend_quarantined",
            "1 while the backend is quarantined: it gets no new calls until a canary call succeeds.",
            labels=["backend"],
        )
        drained = GaugeMetricFamily(
            "hangup_backend_drained",
            "1 while the backend is drained: an operator keeps new calls away from it.",
            labels=["backend"],
        )
        for row in self._view.backends():
            name = [row["name"]]
            if row["tokens_computed"] is not None:
                computed.add_metric(name, row["tokens_computed"])
            if row["busy"] is not None:
                busy.add_metric(name, row["busy"])
            used.add_metric(name, row["busy_s"])
            alarm.add_metric(name, row["alarm"] is not None)
            drained.add_metric(name, row["drained"])
            quarantined.add_metric(name, row["quarantined"])
        yield from (computed, busy, used, alarm, drained, quarantined)
        aborts = CounterMetricFamily(
            "hangup_aborts",
            "Abort requests to engines: sent, failed, or skipped because too many were in progress.",
            labels=["result"],
        )
        for result, count in self._view.aborts().items():
            aborts.add_metric([result], count)
        yield aborts

    def _reaper(self) -> Iterator[Metric]:
        reaper = self._view.reaper()
        standing = {
            "hangup_zombies": "Ended calls that the engine is known to still compute.",
            "hangup_orphans": "Calls in the engine that this gateway did not send.",
            "hangup_pending_stops": "Ended calls whose stop the engine has not confirmed yet.",
        }
        families = [GaugeMetricFamily(name, doc, labels=["backend"]) for name, doc in standing.items()]
        for backend, *counts in reaper.standing():
            for family, count in zip(families, counts, strict=True):
                family.add_metric([backend], count)
        yield from families
        releases = CounterMetricFamily(
            "hangup_releases",
            "Stopped calls by how their release became known: verified, restarted or unverified.",
            labels=["backend", "result"],
        )
        for backend, *_ in reaper.standing():
            for result in ("verified", "restarted", "unverified"):
                releases.add_metric([backend, result], reaper.releases[backend, result])
        yield releases
        steps = CounterMetricFamily(
            "hangup_ladder_steps", "Steps of the ladder against zombies and wedged engines.", labels=["backend", "step"]
        )
        for backend, *_ in reaper.standing():
            for step in STEPS:
                steps.add_metric([backend, step], reaper.steps[backend, step])
        yield steps
        yield histogram(
            "hangup_release_seconds", "From a call's end until the engine confirmed that the work is gone.", reaper.release_s
        )

    def _jobs(self) -> Iterator[Metric]:
        view = self._view.jobs()
        if view is None:
            return
        counts = view.counts()
        jobs = GaugeMetricFamily("hangup_jobs", "Unfinished jobs, by kind and status.", labels=["kind", "status"])
        for kind in Kind:
            for status in JobStatus:
                if not status.ended:
                    jobs.add_metric([kind, status], counts["jobs"][kind, status])
        yield jobs
        items = GaugeMetricFamily("hangup_job_items", "Unfinished items of jobs, by state.", labels=["state"])
        items.add_metric(["queued"], counts["queued"])
        items.add_metric(["running"], counts["running"])
        yield items
        ended = CounterMetricFamily(
            "hangup_job_items_ended", "Job items that ended in this gateway, by result.", labels=["result"]
        )
        for state in ItemState:
            if state.ended:
                ended.add_metric([state.name.lower()], counts["ended"][state])
        yield ended
        yield CounterMetricFamily(
            "hangup_job_results_refused", "Stale results refused: another worker had claimed the item.", counts["refused"]
        )
        yield GaugeMetricFamily(
            "hangup_job_store_failing",
            "1 while the job store cannot be written, for example because the disk is full.",
            counts["failing"],
        )
        held = counts["held_bytes"]
        yield GaugeMetricFamily("hangup_job_results_held_bytes", "Results of jobs in memory that wait to be written.", held)
        yield CounterMetricFamily(
            "hangup_job_cancel_timeouts",
            "Cancelled jobs that a provider did not stop within provider_cancel_s.",
            counts["not_stopped"],
        )
        yield CounterMetricFamily(
            "hangup_jobs_not_followed",
            "Jobs passed to a provider without following them, because of provider_jobs_max.",
            counts["not_followed"],
        )

    def _process(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("hangup_connections", "Open client connections.", self._view.connections())
        held = self._view.media_held_bytes()
        yield GaugeMetricFamily(
            "hangup_media_held_bytes",
            "Request bodies with audio or image files in memory; media_held_bytes_max is the limit.",
            held,
        )
        yield GaugeMetricFamily(
            "hangup_body_bytes", "Incomplete request bodies in memory; bodies_bytes_max is the limit.", self._view.body_bytes()
        )
        counts = self._view.counts()
        yield CounterMetricFamily(
            "hangup_connections_refused", "Connections refused because of connections_max.", counts["connections_refused"]
        )
        yield CounterMetricFamily(
            "hangup_log_lines_dropped", "Log lines dropped because the log's reader was too slow.", counts["log_lines_dropped"]
        )
        yield CounterMetricFamily(
            "hangup_ledger_entries_dropped",
            "Calls missing from the ledger because it could not be written.",
            counts["ledger_entries_dropped"],
        )
        yield CounterMetricFamily(
            "hangup_traces_dropped",
            "Traces dropped because the collector did not accept them in time.",
            counts["traces_dropped"],
        )
        shared = self._view.shared_state
        yield GaugeMetricFamily(
            "hangup_shared_state_failing",
            "1 while the store of shared_state cannot be used.",
            shared is not None and not shared.up,
        )
        yield GaugeMetricFamily(
            "hangup_gateways",
            "Gateways that share their state, this one included.",
            shared.members if shared is not None else 1,
        )
        yield CounterMetricFamily("hangup_divergence_alarms", "Divergence alarms raised.", counts["divergence_alarms"])
        yield from self._tasks()
        yield GaugeMetricFamily("hangup_loop_tasks", "Unfinished asyncio tasks.", self._view.loop_tasks())
        yield CounterMetricFamily(
            "hangup_loop_stalls", "Times that the event loop was blocked for longer than loop_stall_s.", counts["loop_stalls"]
        )
        yield GaugeMetricFamily(
            "hangup_loop_stall_max_seconds", "Longest time that the event loop was blocked.", self._view.longest_stall_s()
        )
        yield histogram("hangup_loop_lag_seconds", "Event loop lag: how late its timers fired.", self._view.loop_lag())
        build = GaugeMetricFamily("hangup_build_info", "Always 1; the label has the running version.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build

    def _tasks(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "hangup_tasks_running", "Running background tasks and threads of the gateway.", labels=["task"]
        )
        failures = CounterMetricFamily(
            "hangup_task_failures", "Failures of background tasks and threads; each is restarted.", labels=["task"]
        )
        busy = GaugeMetricFamily(
            "hangup_thread_busy_seconds", "How long a thread has been at its current piece of work; 0: idle.", labels=["task"]
        )
        for task in self._view.tasks():
            if task.marks_work:
                busy.add_metric([task.name], task.busy_s)
            if task.expected or task.running:  # otherwise it is a temporary task, of which none runs now
                running.add_metric([task.name], task.running)
            failures.add_metric([task.name], task.failures)
        yield running
        yield failures
        yield busy


def registry(view: GatewayView) -> CollectorRegistry:
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(GatewayCollector(view))
    ProcessCollector(registry=collectors)
    return collectors


async def render(collectors: Collector, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type: OpenMetrics, which has exemplars, or Prometheus' older text.

    With many models and backends a page takes 100 ms and more, which the calls on the same event loop must not wait for: it is
    written in pieces, with turns for others between. Each metric is collected in one turn, so it is consistent in itself.
    """
    encode, content_type = choose_encoder(accept)
    page = bytearray()
    for metric in collectors.collect():
        samples, metric.samples = metric.samples, []
        head = encode(_Piece(metric)).removesuffix(_EOF)
        page += head
        for start in range(0, len(samples), _SAMPLES_PER_TURN):
            metric.samples = samples[start : start + _SAMPLES_PER_TURN]
            await asyncio.sleep(0)
            page += encode(_Piece(metric)).removesuffix(_EOF).removeprefix(head)
    page += encode(CollectorRegistry(auto_describe=False))  # OpenMetrics' end
    return bytes(page), content_type


class _Piece(Collector):
    """One metric, or some of its samples, as prometheus_client's encoders take it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric

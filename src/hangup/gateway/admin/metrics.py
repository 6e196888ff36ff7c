"""Prometheus metrics, collected from the gateway's own counters at each scrape: nothing is counted twice, or on the hot path.

Every metric is listed in docs/metrics.md, which a test compares with this file's output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hangup import __version__
from hangup.core.call import Phase
from hangup.core.jobs import ItemState, JobStatus, Kind
from hangup.core.ledger import Histogram
from hangup.core.reaper import STEPS
from hangup.gateway.admin.view import GatewayView


class GatewayCollector(Collector):
    def __init__(self, view: GatewayView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        yield from self._calls()
        yield from self._backends()
        yield from self._reaper()
        yield from self._jobs()
        yield from self._process()

    def _calls(self) -> Iterator[Metric]:
        ledger = self._view.ledger
        calls = CounterMetricFamily(
            "hangup_calls", "Calls ended, by route, outcome and cause.", labels=["route", "outcome", "cause"]
        )
        for (route, outcome, cause), count in ledger.calls.items():
            calls.add_metric([route, outcome, cause], count)
        yield calls
        tokens = CounterMetricFamily(
            "hangup_tokens", "Output tokens, by where they went.", labels=["tenant", "backend", "fate"]
        )
        for (tenant, backend, fate), count in ledger.tokens.items():
            tokens.add_metric([tenant, backend, fate], count)
        yield tokens
        live = GaugeMetricFamily("hangup_calls_live", "Calls in progress, by phase.", labels=["phase"])
        phases = Counter(self._view.phases())
        for phase in Phase:
            if phase is not Phase.ENDED:
                live.add_metric([phase.value], phases[phase])
        yield live
        yield GaugeMetricFamily("hangup_queue_depth", "Calls waiting for a backend.", self._view.queue_depth())
        yield _histogram("hangup_first_token_seconds", "From a call's first byte to its first token.", ledger.first_token_s)
        yield _histogram("hangup_queue_seconds", "From a call's last byte to its dispatch.", ledger.queue_s)
        yield _histogram("hangup_call_seconds", "From a call's first byte to its end.", ledger.total_s)
        yield _histogram("hangup_call_output_tokens", "Output tokens of a call.", ledger.tokens_out)
        yield _histogram("hangup_call_prompt_tokens", "Prompt tokens of a call, where the engine told.", ledger.tokens_in)

    def _backends(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("hangup_backend_up", "Whether a backend is up.", labels=["backend"])
        in_flight = GaugeMetricFamily("hangup_backend_in_flight", "Calls sent to a backend and not ended.", labels=["backend"])
        limit = GaugeMetricFamily(
            "hangup_backend_limit",
            "Calls that a backend may have at a time, as set or as learned just now; +Inf while nothing shows that it queues.",
            labels=["backend"],
        )
        limited = GaugeMetricFamily(
            "hangup_backend_limited_by",
            "1 for what limits a backend: slots, late_first_tokens, engine_reports_waiting, engine_refused, slow_steps, none.",
            labels=["backend", "by"],
        )
        for load in self._view.loads():
            up.add_metric([load.name], load.health.up)
            in_flight.add_metric([load.name], load.in_flight)
            limit.add_metric([load.name], math.inf if load.is_open and load.limit else load.limit)
            limited.add_metric([load.name, load.limited_by], 1)
        computed = CounterMetricFamily(
            "hangup_backend_tokens_computed",
            "Tokens that an engine says it computed since the gateway knows it.",
            labels=["backend"],
        )
        busy = GaugeMetricFamily("hangup_backend_busy_ratio", "How busy an engine is, where anybody knows.", labels=["backend"])
        used = CounterMetricFamily(
            "hangup_backend_used_seconds", "Seconds in which a backend had a call of ours.", labels=["backend"]
        )
        alarm = GaugeMetricFamily(
            "hangup_divergence_alarm", "1 while an engine is busy and too little comes of it.", labels=["backend"]
        )
        quarantined = GaugeMetricFamily(
            "hangup_backend_quarantined", "1 while the ladder keeps new calls away.", labels=["backend"]
        )
        drained = GaugeMetricFamily("hangup_backend_drained", "1 while an operator keeps new calls away.", labels=["backend"])
        for row in self._view.backends():
            name = [row["name"]]
            if row["tokens_computed"] is not None:
                computed.add_metric(name, row["tokens_computed"])
            if row["busy"] is not None:
                busy.add_metric(name, row["busy"])
            used.add_metric(name, row["busy_s"])
            alarm.add_metric(name, row["alarm"] is not None)
            drained.add_metric(name, row["state"].startswith("drain"))
            quarantined.add_metric(name, row["state"].endswith("quarantined"))
        yield from (computed, busy, used, alarm, drained, quarantined)
        yield up
        yield in_flight
        yield limit
        yield limited
        aborts = CounterMetricFamily("hangup_aborts", "Explicit aborts, by what became of them.", labels=["result"])
        for result, count in self._view.aborts().items():
            aborts.add_metric([result], count)
        yield aborts

    def _reaper(self) -> Iterator[Metric]:
        reaper = self._view.reaper()
        standing = {
            "hangup_zombies": "Ended calls that a backend is known to run on with.",
            "hangup_orphans": "Work in a backend that no call of ours has caused.",
            "hangup_unverified": "Ended calls whose work is not known to be gone.",
        }
        families = [GaugeMetricFamily(name, doc, labels=["backend"]) for name, doc in standing.items()]
        for backend, *counts in reaper.standing():
            for family, count in zip(families, counts, strict=True):
                family.add_metric([backend], count)
        yield from families
        releases = CounterMetricFamily(
            "hangup_releases", "Ended calls that were let go, by what is known of them.", labels=["backend", "result"]
        )
        for backend, *_ in reaper.standing():
            for result in ("verified", "restarted", "unverified"):
                releases.add_metric([backend, result], reaper.releases[backend, result])
        yield releases
        steps = CounterMetricFamily("hangup_ladder_steps", "Steps taken about zombies and wedges.", labels=["backend", "step"])
        for backend, *_ in reaper.standing():
            for step in STEPS:
                steps.add_metric([backend, step], reaper.steps[backend, step])
        yield steps
        yield _histogram("hangup_release_seconds", "From a call's end to the engine's word that it is gone.", reaper.release_s)

    def _jobs(self) -> Iterator[Metric]:
        view = self._view.jobs()
        if view is None:
            return
        counts = view.counts()
        jobs = GaugeMetricFamily("hangup_jobs", "Jobs that have not ended.", labels=["kind", "status"])
        for kind in Kind:
            for status in JobStatus:
                if not status.ended:
                    jobs.add_metric([kind, status], counts["jobs"][kind, status])
        yield jobs
        items = GaugeMetricFamily("hangup_job_items", "Items of jobs that have not ended.", labels=["state"])
        items.add_metric(["queued"], counts["queued"])
        items.add_metric(["running"], counts["running"])
        yield items
        ended = CounterMetricFamily("hangup_job_items_ended", "Items that ended here, by how.", labels=["result"])
        for state in ItemState:
            if state.ended:
                ended.add_metric([state.name.lower()], counts["ended"][state])
        yield ended
        yield CounterMetricFamily(
            "hangup_job_results_refused", "Results that came after their item was given to another worker.", counts["refused"]
        )
        yield GaugeMetricFamily("hangup_job_store_failing", "1 while the store of jobs cannot be written.", counts["failing"])
        held = counts["held_bytes"]
        yield GaugeMetricFamily("hangup_job_results_held_bytes", "Results of jobs that wait to be written.", held)
        yield CounterMetricFamily(
            "hangup_jobs_not_stopped", "Cancelled jobs that a provider did not stop in time.", counts["not_stopped"]
        )
        yield CounterMetricFamily(
            "hangup_jobs_not_followed", "Jobs passed to a provider beyond provider_jobs_max.", counts["not_followed"]
        )

    def _process(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("hangup_connections", "Client connections open.", self._view.connections())
        held = self._view.media_held_bytes()
        yield GaugeMetricFamily("hangup_media_held_bytes", "Bytes of audio and image calls' bodies held.", held)
        yield GaugeMetricFamily("hangup_body_bytes", "Bytes of request bodies on their way in.", self._view.body_bytes())
        counts = self._view.counts()
        yield CounterMetricFamily(
            "hangup_connections_refused", "Connections refused, over connections_max.", counts["connections_refused"]
        )
        yield CounterMetricFamily(
            "hangup_log_lines_dropped", "Log lines that its reader was too slow for.", counts["log_lines_dropped"]
        )
        yield CounterMetricFamily(
            "hangup_ledger_entries_dropped", "Calls that the ledger could not take.", counts["ledger_entries_dropped"]
        )
        yield CounterMetricFamily("hangup_traces_dropped", "Traces that the collector did not take.", counts["traces_dropped"])
        yield CounterMetricFamily("hangup_divergence_alarms", "Divergence alarms so far.", counts["divergence_alarms"])
        yield from self._tasks()
        yield GaugeMetricFamily("hangup_loop_tasks", "Tasks of the event loop that have not ended.", self._view.loop_tasks())
        yield CounterMetricFamily("hangup_loop_stalls", "Times that the event loop was held up.", counts["loop_stalls"])
        yield GaugeMetricFamily("hangup_loop_stall_max_seconds", "The longest of these.", self._view.longest_stall_s())
        yield _histogram("hangup_loop_lag_seconds", "How late the event loop's timers were.", self._view.loop_lag())
        build = GaugeMetricFamily("hangup_build_info", "The version that runs.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build

    def _tasks(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("hangup_tasks_running", "Tasks and threads of the gateway's own that run.", labels=["task"])
        failures = CounterMetricFamily("hangup_task_failures", "Failures of them; each is started again.", labels=["task"])
        for task in self._view.tasks():
            if task.expected or task.running:  # otherwise it is a temporary task, of which none runs now
                running.add_metric([task.name], task.running)
            failures.add_metric([task.name], task.failures)
        yield running
        yield failures


def _histogram(name: str, doc: str, histogram: Histogram) -> HistogramMetricFamily:
    buckets, total = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, doc, buckets=buckets, sum_value=histogram.sum)


def registry(view: GatewayView) -> CollectorRegistry:
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(GatewayCollector(view))
    return collectors


def render(collectors: CollectorRegistry) -> bytes:
    return generate_latest(collectors)

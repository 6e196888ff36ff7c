"""The metrics of calls: how many ended and how, and how long they took, by model and backend.

The names `gen_ai_…` are those of OpenTelemetry's semantic conventions for generative AI, as Prometheus writes them. They show
the same counts as their neighbours `hangup_…`, for dashboards that were made for any engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

from hangup.core.call import Phase
from hangup.core.histogram import Histogram, total
from hangup.core.ledger import OTHER, CallSeries, Labels, Ledger
from hangup.core.spans import operation_of
from hangup.gateway.admin.view import GatewayView

_Key = tuple[str, ...]
_Bucket = tuple[str, float] | tuple[str, float, Exemplar]
_HISTOGRAMS = (
    ("hangup_first_token_seconds", "Time to first token: from a call's first byte to its first token.", "first_token_s"),
    ("hangup_gap_seconds", "Time between two tokens: the average of each call with at least two.", "gap_s"),
    ("hangup_queue_seconds", "Time in the queue: from a complete request to its dispatch to a backend.", "queue_s"),
    ("hangup_call_seconds", "Duration of a call, from its first byte to its end.", "total_s"),
)
_GEN_AI_HISTOGRAMS = (
    ("gen_ai_server_time_to_first_token_seconds", "As hangup_first_token_seconds, for calls of inference.", "first_token_s"),
    ("gen_ai_server_time_per_output_token_seconds", "As hangup_gap_seconds, for calls of inference.", "gap_s"),
    ("gen_ai_server_request_duration_seconds", "As hangup_call_seconds, for calls of inference.", "total_s"),
)
_GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "backend")


def collect(view: GatewayView, wall_offset_s: float) -> Iterator[Metric]:
    """Return the metrics of calls; `wall_offset_s` is the wall time at 0 of the monotonic clock."""
    ledger = view.ledger
    yield _ended(ledger)
    tokens = CounterMetricFamily(
        "hangup_output_tokens",
        "Output tokens by result: delivered, wasted or zombie.",
        labels=["tenant", "backend", "result"],
    )
    for (tenant, backend, result), count in ledger.tokens.items():
        tokens.add_metric([tenant, backend, result], count)
    yield tokens
    live = GaugeMetricFamily("hangup_calls_live", "Calls in progress, by phase.", labels=["phase"])
    phases = Counter(view.phases())
    for phase in Phase:
        if phase is not Phase.ENDED:
            live.add_metric([phase.value], phases[phase])
    yield live
    yield GaugeMetricFamily("hangup_queue_depth", "Calls waiting in the queue for a backend.", view.queue_depth())
    groups = _grouped(ledger, _model_and_backend)
    for name, doc, attribute in _HISTOGRAMS:
        yield _family(name, doc, ("model", "backend"), groups, attribute, wall_offset_s)
    inference = _grouped(ledger, _inference)
    for name, doc, attribute in _GEN_AI_HISTOGRAMS:
        yield _family(name, doc, _GEN_AI_LABELS, inference, attribute, wall_offset_s)
    yield histogram("hangup_call_output_tokens", "Output tokens per call, of calls that had any.", ledger.tokens_out)
    yield histogram("hangup_call_prompt_tokens", "Prompt tokens per call, as the engine reported them.", ledger.tokens_in)


def _ended(ledger: Ledger) -> Metric:
    calls = CounterMetricFamily(
        "hangup_calls",
        "Calls ended, by route, tenant, model, backend, outcome, cause and class of the status.",
        labels=[*Labels._fields, "outcome", "cause", "status"],
    )
    for series in ledger.series.values():
        for (reason, digit), count in series.ends.items():
            status = f"{digit}xx" if digit else ""
            calls.add_metric([*series.labels, reason.outcome.value, reason.code, status], count)
    return calls


def _model_and_backend(labels: Labels) -> _Key | None:
    return (labels.model, labels.backend)


def _inference(labels: Labels) -> _Key | None:
    operation = operation_of(labels.route)
    return (operation, labels.route.partition(".")[0], labels.model, labels.backend) if operation else None


def _grouped(ledger: Ledger, key_of: Callable[[Labels], _Key | None]) -> dict[_Key, list[CallSeries]]:
    """Group the series. The oldest keys keep their names, so that no counter moves from one name to another."""
    groups: dict[_Key, list[CallSeries]] = {}
    for series in ledger.series.values():
        key = key_of(series.labels)
        if key is None:
            continue
        if key not in groups and len(groups) >= ledger.histograms_max:
            key = (OTHER,) * len(key)
        groups.setdefault(key, []).append(series)
    return groups


def _family(
    name: str, doc: str, labels: _Key, groups: dict[_Key, list[CallSeries]], attribute: str, wall_offset_s: float
) -> Metric:
    family = HistogramMetricFamily(name, doc, labels=labels)
    one_of = attrgetter(attribute)
    for key, members in groups.items():
        summed = total(map(one_of, members))
        if any(summed.counts):
            family.add_metric(key, _buckets(summed, wall_offset_s), summed.sum)
    return family


def histogram(name: str, doc: str, values: Histogram) -> HistogramMetricFamily:
    """Return a histogram without labels."""
    return HistogramMetricFamily(name, doc, buckets=_buckets(values, 0.0), sum_value=values.sum)


def _buckets(values: Histogram, wall_offset_s: float) -> list[_Bucket]:
    buckets: list[_Bucket] = []
    below = 0
    for at, (bound, count) in enumerate(zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True)):
        below += count
        shown = values.exemplars.get(at)
        if shown is None:
            buckets.append((bound, below))
        else:
            buckets.append((bound, below, Exemplar({"trace_id": shown.trace_id}, shown.value, shown.at + wall_offset_s)))
    return buckets

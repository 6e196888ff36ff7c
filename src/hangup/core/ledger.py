"""`Ledger`: totals of where every call and every token went, kept in memory for the metrics.

Calls are counted by route, tenant, model and backend. The number of such sets is bounded, because clients choose the names of
models: beyond the bound, a call is counted under the name `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final, NamedTuple

from hangup.core.call import Call
from hangup.core.histogram import SECONDS, TOKENS, Histogram
from hangup.core.reasons import Outcome, Reason

OTHER: Final = "other"  # stands for all names beyond the bound
LABEL_SETS_MAX, HISTOGRAMS_MAX = 1000, 64

# As constants of the module, because Python 3.11 takes as long for a member of an enum as for a function call.
_COMPLETED: Final = Outcome.COMPLETED
_REFUSED: Final = Outcome.REFUSED
_CAP: Final = Outcome.CAP
_ENGINE_REFUSED: Final = Outcome.ENGINE_REFUSED


class Labels(NamedTuple):
    """What calls are counted by. `backend` is empty if no backend got the call."""

    route: str
    tenant: str
    model: str
    backend: str


class CallSeries:
    """Counters and histograms of the calls of one route, tenant, model and backend."""

    __slots__ = ("ends", "first_token_s", "gap_s", "labels", "queue_s", "total_s")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.ends: defaultdict[tuple[Reason, int], int] = defaultdict(int)  # reason, first digit of the status
        self.first_token_s = Histogram()
        self.gap_s = Histogram()  # a call's average time between two tokens
        self.queue_s = Histogram()
        self.total_s = Histogram()

    def show(self, call: Call) -> None:
        """Keep a traced call as an example."""
        assert call.ended_at is not None
        at, trace, first, sent = call.ended_at, call.trace_id, call.first_token_at, call.sent_at
        self.total_s.show(trace, at - call.started_at, at)
        if sent is not None and call.received_at is not None:
            self.queue_s.show(trace, sent - call.received_at, at)
        if first is not None and call.outcome is not _ENGINE_REFUSED:
            self.first_token_s.show(trace, first - call.started_at, at)
            if call.tokens_out > 1:
                self.gap_s.show(trace, (call.progress_at - first) / (call.tokens_out - 1), at)


class Ledger:
    """The gateway's totals. `record` is called once for each call, at its end."""

    def __init__(self, label_sets_max: int = LABEL_SETS_MAX, histograms_max: int = HISTOGRAMS_MAX) -> None:
        self.histograms_max = histograms_max  # pairs of model and backend that the metrics show apart
        self.series: dict[tuple[str, str, str, str], CallSeries] = {}  # by `Labels`, oldest first
        self.tokens: Counter[tuple[str, str, str]] = Counter()  # tenant, backend, delivered | wasted | zombie
        self.tokens_out = Histogram(TOKENS)
        self.tokens_in = Histogram(TOKENS)
        self._label_sets_max = label_sets_max
        self._models: set[str] = set()  # those that a backend has served

    @property
    def calls(self) -> Counter[tuple[str, str, str]]:
        """Return the number of calls by route, outcome and cause."""
        calls: Counter[tuple[str, str, str]] = Counter()
        for series in self.series.values():
            for (reason, _), count in series.ends.items():
                calls[series.labels.route, reason.outcome, reason.code] += count
        return calls

    def record(self, call: Call) -> None:
        reason = call.reason
        assert reason is not None and call.ended_at is not None
        series = self.series.get((call.route, call.tenant, call.model, call.backend)) or self._series_of(call)
        series.ends[reason, call.status // 100] += 1
        if call.tokens_out:
            key = (call.tenant, call.backend, "delivered" if delivered(call) else "wasted")
            if key in self.tokens:  # the usual case
                self.tokens[key] += call.tokens_out
            else:
                self.add_tokens(*key, call.tokens_out)
        if reason.outcome is _REFUSED:
            return
        # As `Histogram.observe`, without a function call for each: every call passes here.
        total, part = call.ended_at - call.started_at, series.total_s
        part.counts[bisect_left(SECONDS, total)] += 1
        part.sum += total
        sent, received, first = call.sent_at, call.received_at, call.first_token_at
        if sent is not None and received is not None:
            queued, part = sent - received, series.queue_s
            part.counts[bisect_left(SECONDS, queued)] += 1
            part.sum += queued
        if call.tokens_in is not None:
            part = self.tokens_in
            part.counts[bisect_left(TOKENS, call.tokens_in)] += 1
            part.sum += call.tokens_in
        if first is not None and reason.outcome is not _ENGINE_REFUSED:  # an error has no tokens
            part = self.tokens_out
            part.counts[bisect_left(TOKENS, call.tokens_out)] += 1
            part.sum += call.tokens_out
            waited, part = first - call.started_at, series.first_token_s
            part.counts[bisect_left(SECONDS, waited)] += 1
            part.sum += waited
            if call.tokens_out > 1:
                gap, part = (call.progress_at - first) / (call.tokens_out - 1), series.gap_s
                part.counts[bisect_left(SECONDS, gap)] += 1
                part.sum += gap
        if call.span_id:
            series.show(call)

    def add_tokens(self, tenant: str, backend: str, fate: str, count: int) -> None:
        """Count tokens. The sum of each backend stays exact, however many tenants use it."""
        key = (tenant, backend, fate)
        if len(self.tokens) >= self._label_sets_max and key not in self.tokens:
            key = (OTHER, backend, fate)
        self.tokens[key] += count

    def _series_of(self, call: Call) -> CallSeries:
        """Return the series of a call that is the first of its kind, or goes under another name."""
        count, most = len(self.series), self._label_sets_max
        if count >= most // 2 and call.model.isascii():  # no model gets a series any more: the usual ones are found quickly
            known = self.series.get((call.route, call.tenant, call.model and OTHER, call.backend))
            if known is None and count >= most:
                known = self.series.get((call.route, OTHER, OTHER, OTHER))
            if known is not None:
                return known
        labels = self._labels(call)
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = CallSeries(labels)
        return series

    def _labels(self, call: Call) -> Labels:
        """Return the names under which a call is counted.

        A model has a name of its own once a backend has served it, so that clients' typing errors take nobody's place. Names of
        models get half of the sets: tenants and backends, which the operator chose, need some for themselves.
        """
        count = len(self.series)
        model = call.model.encode("utf-8", "replace").decode()  # half a character cannot be shown
        served = 200 <= call.status < 300 or (call.first_token_at is not None and call.outcome is not _ENGINE_REFUSED)
        if served and count < self._label_sets_max // 2:
            self._models.add(model)
        if model and model not in self._models:
            model = OTHER
        labels = Labels(call.route, call.tenant, model, call.backend)
        if labels in self.series or count < self._label_sets_max // 2:
            return labels
        labels = Labels(call.route, call.tenant, model and OTHER, call.backend)
        if labels in self.series or count < self._label_sets_max:
            return labels
        return Labels(call.route, OTHER, OTHER, OTHER)


def delivered(call: Call) -> bool:
    """Return whether the client got the tokens that were counted.

    Tokens of a stream were delivered as they came, however it ended. An answer that is sent as a whole was delivered only if it
    was finished.
    """
    if call.stream:
        return True
    outcome = call.outcome
    return outcome is _COMPLETED or outcome is _ENGINE_REFUSED or (outcome is _CAP and call.status == 200)

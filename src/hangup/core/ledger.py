"""`Ledger`: totals of where every call and every token went, kept in memory for the metrics.

Calls are counted by route, tenant, model and backend. The number of such sets is bounded, because clients choose the names of
models: beyond the bound, a call is counted under the name `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final, NamedTuple

from hangup.core.call import Call
from hangup.core.histogram import SECONDS, TOKENS, Exemplar, Histogram
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


_WIDTH = len(SECONDS) + 1
_FIRST_TOKEN, _GAP, _QUEUE, _TOTAL = range(0, 4 * _WIDTH, _WIDTH)  # where each histogram begins


class CallSeries:
    """Counters and histograms of the calls of one route, tenant, model and backend.

    A call touches all of it at its end, so it is made of few objects: with many series, most of them are not in the processor's
    caches.
    """

    __slots__ = (
        "_counts",
        "_exemplars",
        "_first_token_sum_s",
        "_gap_sum_s",
        "_queue_sum_s",
        "_total_sum_s",
        "delivered",
        "ends",
        "is_rest",
        "labels",
        "wasted",
    )

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.is_rest = labels[1:] == (OTHER, OTHER, OTHER)  # it has all calls of its route that have no series of their own
        self.ends: defaultdict[tuple[Reason, int], int] = defaultdict(int)  # reason, first digit of the status
        self.delivered = 0  # tokens; not counted here if `is_rest`,
        self.wasted = 0  # nor these
        self._counts = [0] * (4 * _WIDTH)  # of four histograms, one after the other
        self._first_token_sum_s = self._gap_sum_s = self._queue_sum_s = self._total_sum_s = 0.0
        self._exemplars: dict[int, Exemplar] = {}  # the latest traced call, by place in `_counts`

    def add(self, call: Call, *, has_tokens: bool) -> None:
        """Add the times of an ended call."""
        assert call.ended_at is not None
        counts, sent, received, first = self._counts, call.sent_at, call.received_at, call.first_token_at
        total_s = call.ended_at - call.started_at
        counts[_TOTAL + bisect_left(SECONDS, total_s)] += 1
        self._total_sum_s += total_s
        if sent is not None and received is not None:
            counts[_QUEUE + bisect_left(SECONDS, sent - received)] += 1
            self._queue_sum_s += sent - received
        if first is not None and has_tokens:
            counts[_FIRST_TOKEN + bisect_left(SECONDS, first - call.started_at)] += 1
            self._first_token_sum_s += first - call.started_at
            if call.tokens_out > 1:
                gap_s = (call.progress_at - first) / (call.tokens_out - 1)
                counts[_GAP + bisect_left(SECONDS, gap_s)] += 1
                self._gap_sum_s += gap_s
        if call.span_id:
            self._show(call, has_tokens)

    def _show(self, call: Call, has_tokens: bool) -> None:
        """Keep a traced call as an example."""
        assert call.ended_at is not None
        at, first, sent = call.ended_at, call.first_token_at, call.sent_at
        values = {_TOTAL: at - call.started_at}
        if sent is not None and call.received_at is not None:
            values[_QUEUE] = sent - call.received_at
        if first is not None and has_tokens:
            values[_FIRST_TOKEN] = first - call.started_at
            if call.tokens_out > 1:
                values[_GAP] = (call.progress_at - first) / (call.tokens_out - 1)
        for begin, value in values.items():
            self._exemplars[begin + bisect_left(SECONDS, value)] = Exemplar(call.trace_id, value, at)

    @property
    def first_token_s(self) -> Histogram:
        return self._histogram(_FIRST_TOKEN, self._first_token_sum_s)

    @property
    def gap_s(self) -> Histogram:
        """Return the histogram of calls' average times between two tokens."""
        return self._histogram(_GAP, self._gap_sum_s)

    @property
    def queue_s(self) -> Histogram:
        return self._histogram(_QUEUE, self._queue_sum_s)

    @property
    def total_s(self) -> Histogram:
        return self._histogram(_TOTAL, self._total_sum_s)

    def _histogram(self, begin: int, sum_s: float) -> Histogram:
        histogram = Histogram()
        histogram.counts = self._counts[begin : begin + _WIDTH]
        histogram.sum = sum_s
        histogram.exemplars = {at - begin: shown for at, shown in self._exemplars.items() if begin <= at < begin + _WIDTH}
        return histogram


class Ledger:
    """The gateway's totals. `record` is called once for each call, at its end."""

    def __init__(self, label_sets_max: int = LABEL_SETS_MAX, histograms_max: int = HISTOGRAMS_MAX) -> None:
        self.histograms_max = histograms_max  # pairs of model and backend that the metrics show apart
        self.series: dict[tuple[str, str, str, str], CallSeries] = {}  # by `Labels`, oldest first
        self.tokens_out = Histogram(TOKENS)
        self.tokens_in = Histogram(TOKENS)
        self._label_sets_max = label_sets_max
        self._tokens: Counter[tuple[str, str, str]] = Counter()  # those that are in no series, as in `tokens`
        self._models: set[str] = set()  # those that a backend has served

    @property
    def calls(self) -> Counter[tuple[str, str, str]]:
        """Return the number of calls by route, outcome and cause."""
        calls: Counter[tuple[str, str, str]] = Counter()
        for series in self.series.values():
            for (reason, _), count in series.ends.items():
                calls[series.labels.route, reason.outcome, reason.code] += count
        return calls

    @property
    def tokens(self) -> Counter[tuple[str, str, str]]:
        """Return the output tokens by tenant, backend and delivered | wasted | zombie."""
        tokens = self._tokens.copy()
        for series in self.series.values():
            _, tenant, _, backend = series.labels
            if series.delivered:
                tokens[tenant, backend, "delivered"] += series.delivered
            if series.wasted:
                tokens[tenant, backend, "wasted"] += series.wasted
        return tokens

    def record(self, call: Call) -> None:
        reason = call.reason
        assert reason is not None and call.ended_at is not None
        series = self.series.get((call.route, call.tenant, call.model, call.backend)) or self._series_of(call)
        series.ends[reason, call.status // 100] += 1
        if call.tokens_out:
            got = delivered(call)
            if series.is_rest:
                self.add_tokens(call.tenant, call.backend, "delivered" if got else "wasted", call.tokens_out)
            elif got:
                series.delivered += call.tokens_out
            else:
                series.wasted += call.tokens_out
        if reason.outcome is _REFUSED:
            return
        has_tokens = call.first_token_at is not None and reason.outcome is not _ENGINE_REFUSED  # an error has none
        series.add(call, has_tokens=has_tokens)
        # As `Histogram.observe`, without a function call for each: every call passes here.
        if call.tokens_in is not None:
            part = self.tokens_in
            part.counts[bisect_left(TOKENS, call.tokens_in)] += 1
            part.sum += call.tokens_in
        if has_tokens:
            part = self.tokens_out
            part.counts[bisect_left(TOKENS, call.tokens_out)] += 1
            part.sum += call.tokens_out

    def add_tokens(self, tenant: str, backend: str, fate: str, count: int) -> None:
        """Count tokens. The sum of each backend stays exact, however many tenants use it."""
        key = (tenant, backend, fate)
        if len(self.series) + len(self._tokens) >= self._label_sets_max and key not in self._tokens:
            key = (OTHER, backend, fate)
        self._tokens[key] += count

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

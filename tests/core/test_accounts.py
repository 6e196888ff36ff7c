"""What the ledger records when a call ends: one entry, for the right tenant, with the right cost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.core import reasons, zombie_shares
from hangup.core.account import FREE, Account, Price, saved, unexplained
from hangup.core.call import Call
from hangup.core.histogram import SECONDS, TOKENS, Histogram
from hangup.core.ledger import OTHER, Ledger, delivered
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Reason

PRICE = Price(per_hour=3600.0, per_million_tokens=2e6)  # one a second, two a token


def ended(reason: Reason, *, tokens: int = 10, stream: bool = True, status: int = 200) -> Call:
    """Return an ended call: received after 1 s, sent after 3 s, first token after 6 s, end after 10 s."""
    call = Call("id", 100.0)
    call.tenant, call.model, call.route, call.stream, call.tokens_in = "ann", "m", "openai.chat", stream, 7
    call.received(101.0)
    call.sent("gpu", 103.0)
    call.answered(105.0)
    if tokens:
        call.progressed(tokens, 106.0)
    call.client_answer_began(status)
    call.engine_finished = reason is reasons.COMPLETED
    call.end(reason, 110.0)
    return call


def put(histogram: Histogram) -> dict[float, int]:
    """Return the counts of the buckets, by their upper bounds."""
    return {bound: count for bound, count in zip((*histogram.bounds, -1), histogram.counts, strict=True) if count}


class TestLedger:
    def test_a_call_is_counted_once_under_its_route_and_its_end(self) -> None:
        ledger = Ledger()
        ledger.record(ended(reasons.COMPLETED))
        ledger.record(ended(reasons.COMPLETED))
        ledger.record(ended(reasons.CLIENT_FIN))
        assert ledger.calls == {("openai.chat", "completed", "completed"): 2, ("openai.chat", "client_gone", "fin"): 1}
        assert ledger.tokens == {("ann", "gpu", "delivered"): 30}

    def test_each_of_its_times_and_sizes_is_in_its_own_histogram(self) -> None:
        ledger = Ledger()
        ledger.record(ended(reasons.COMPLETED))
        (series,) = ledger.series.values()
        assert (put(series.total_s), series.total_s.sum) == ({10: 1}, 10.0)
        assert (put(series.queue_s), series.queue_s.sum) == ({2.5: 1}, 2.0)
        assert (put(series.first_token_s), series.first_token_s.sum) == ({10: 1}, 6.0)
        assert put(series.gap_s) == {0.001: 1}  # its tokens came all at once
        assert (put(ledger.tokens_out), ledger.tokens_out.sum) == ({16: 1}, 10.0)
        assert (put(ledger.tokens_in), ledger.tokens_in.sum) == ({16: 1}, 7.0)

    def test_what_did_not_happen_is_not_measured(self) -> None:
        ledger = Ledger()
        left = Call("id", 0.0)
        left.received(1.0)
        left.end(reasons.CLIENT_FIN, 2.0)
        ledger.record(left)
        (series,) = ledger.series.values()
        assert put(series.total_s) == {2.5: 1} and not ledger.tokens
        assert not (put(series.queue_s) or put(series.first_token_s) or put(series.gap_s))
        assert not (put(ledger.tokens_in) or put(ledger.tokens_out))

    def test_what_was_refused_says_nothing_of_how_long_calls_take(self) -> None:
        ledger, refused = Ledger(), Call("id", 0.0)
        refused.tokens_in = 5
        refused.end(reasons.BAD_FIELD, 3.0)
        ledger.record(refused)
        (series,) = ledger.series.values()
        assert ledger.calls.total() == 1 and not put(series.total_s) and not put(ledger.tokens_in)

    def test_a_gap_is_the_average_of_its_call(self) -> None:
        ledger, call = Ledger(), ended(reasons.COMPLETED)
        call.first_token_at, call.progress_at, call.tokens_out = 106.0, 109.0, 4
        ledger.record(call)
        (series,) = ledger.series.values()
        assert series.gap_s.sum == pytest.approx(1.0)

    def test_a_traced_call_is_the_example_of_its_buckets(self) -> None:
        ledger, plain, traced = Ledger(), ended(reasons.COMPLETED), ended(reasons.COMPLETED)
        traced.trace_id, traced.span_id = "a" * 32, "b" * 16
        ledger.record(traced)
        ledger.record(plain)
        (series,) = ledger.series.values()
        for histogram, value in ((series.total_s, 10.0), (series.queue_s, 2.0), (series.first_token_s, 6.0)):
            (exemplar,) = histogram.exemplars.values()
            assert exemplar == ("a" * 32, value, 110.0)

    def test_an_engines_refusal_is_not_a_completed_call(self) -> None:
        ledger = Ledger()
        for status in (400, 404, 429, 501):
            call = ended(reasons.COMPLETED, tokens=0, status=status)
            assert (call.outcome, call.status) == ("engine_refused", status)
            ledger.record(call)
        ledger.record(ended(reasons.COMPLETED))
        assert ledger.calls == {
            ("openai.chat", "engine_refused", "engine_refused"): 4,
            ("openai.chat", "completed", "completed"): 1,
        }
        own = Call("id", 0.0)  # answered by the gateway itself, say with 404 for a job that does not exist
        own.received(0.0)
        own.client_answer_began(404)
        own.end(reasons.COMPLETED, 1.0)
        assert own.outcome == "completed"


def of(model: str, tenant: str = "ann", backend: str = "gpu", *, served: bool = True) -> Call:
    call = ended(reasons.COMPLETED if served else reasons.CLIENT_FIN, tokens=served, status=200 if served else 499)
    call.model, call.tenant, call.backend = model, tenant, backend
    return call


class TestLabels:
    """metric_label_sets_max"""

    def test_half_of_them_may_name_models(self) -> None:
        ledger = Ledger(8)
        for n in range(100):
            ledger.record(of(f"m{n}"))
        models = [series.labels.model for series in ledger.series.values()]
        assert models == ["m0", "m1", "m2", "m3", OTHER]
        assert ledger.calls.total() == 100

    def test_then_tenants_and_backends_get_the_rest_and_one_set_per_route_takes_what_is_beyond(self) -> None:
        ledger = Ledger(8)
        for n in range(100):
            ledger.record(of("m", f"tenant-{n}", f"gpu-{n}"))
        assert len(ledger.series) == 9 and ledger.calls.total() == 100
        assert list(ledger.series)[-1] == ("openai.chat", OTHER, OTHER, OTHER)
        assert sum(ledger.series["openai.chat", OTHER, OTHER, OTHER].ends.values()) == 92

    def test_a_name_that_no_backend_serves_takes_no_place(self) -> None:
        ledger = Ledger(8)
        for n in range(100):
            ledger.record(of(f"typo-{n}", served=False))
        assert [series.labels.model for series in ledger.series.values()] == [OTHER]
        ledger.record(of("served"))
        ledger.record(of("served", backend="", served=False))  # shed: no backend got it, but the model is known
        assert ("openai.chat", "ann", "served", "") in ledger.series

    @given(st.lists(st.tuples(*[st.sampled_from("abcdé")] * 3, st.booleans()), max_size=60), st.integers(2, 12))
    @settings(max_examples=150, deadline=None)
    def test_a_series_is_found_as_quickly_as_it_would_be_slowly(
        self, calls: list[tuple[str, str, str, bool]], sets: int
    ) -> None:
        ledger = Ledger(sets)
        for model, tenant, backend, served in calls:
            call = of(model, tenant, backend, served=served)
            labels = ledger._labels(call)
            count = sum(ledger.series[labels].ends.values()) if labels in ledger.series else 0
            ledger.record(call)
            assert sum(ledger.series[labels].ends.values()) == count + 1

    def test_the_tokens_of_a_backend_are_exact_however_many_tenants_it_has(self) -> None:
        ledger = Ledger(8)
        for n in range(100):
            ledger.record(of("m", f"tenant-{n}", f"gpu-{n % 3}"))
        ledger.add_tokens("tenant-99", "gpu-0", "zombie", 5)
        assert len(ledger.tokens) == 8 + 4 and ledger.tokens[OTHER, "gpu-0", "zombie"] == 5
        sums = Counter[str]()
        for (_, backend, fate), count in ledger.tokens.items():
            sums[backend] += count if fate == "delivered" else 0
        assert sums == {"gpu-0": 34, "gpu-1": 33, "gpu-2": 33}

    def test_half_a_character_can_be_shown(self) -> None:
        ledger = Ledger()
        ledger.record(of("\ud800"))
        assert [series.labels.model for series in ledger.series.values()] == ["?"]

    @pytest.mark.parametrize(
        ("reason", "stream", "status", "got"),
        [
            (reasons.COMPLETED, False, 200, True),
            (reasons.CLIENT_FIN, True, 200, True),  # as they came
            (reasons.CLIENT_FIN, False, 499, False),
            (reasons.OUTPUT_TOKENS, False, 200, True),
            (reasons.TOTAL_TIME, False, 504, False),
            (reasons.ENGINE_DIED, True, 200, True),
        ],
    )
    def test_whether_the_client_got_its_tokens(self, reason: Reason, stream: bool, status: int, got: bool) -> None:
        call = ended(reason, stream=stream, status=status)
        assert delivered(call) is got
        ledger = Ledger()
        ledger.record(call)
        assert ledger.tokens == {("ann", "gpu", "delivered" if got else "wasted"): 10}


class TestHistogram:
    def test_a_bound_is_within_its_bucket_and_all_above_the_last_is_one(self) -> None:
        histogram = Histogram((1.0, 2.0))
        for value in (0.5, 1.0, 1.5, 2.0, 2.1, 99.0):
            histogram.observe(value)
        assert histogram.counts == [2, 2, 2] and histogram.sum == pytest.approx(106.1)

    def test_bounds_grow(self) -> None:
        for bounds in (SECONDS, TOKENS):
            assert list(bounds) == sorted(set(bounds)) and Histogram(bounds).counts == [0] * (len(bounds) + 1)
        assert Histogram().bounds is Histogram().bounds, "one for all"
        assert Histogram().bounds == SECONDS and Ledger().tokens_out.bounds == Ledger().tokens_in.bounds == TOKENS


class TestAccount:
    def booked(self, call: Call, predicted: float = 25.0, price: Price = PRICE) -> Account:
        account = Account()
        account.add_call(call, 4.0, predicted, price)
        return account

    def test_a_completed_call(self) -> None:
        account = self.booked(ended(reasons.COMPLETED))
        assert account == Account(calls=1, tokens_in=7, tokens_delivered=10, engine_s=4.0, money=24.0)

    def test_one_whose_stream_was_left(self) -> None:
        """The client got what was computed; 15 more tokens of such an answer were spared, each at the price of those before."""
        account = self.booked(ended(reasons.CLIENT_FIN))
        assert (account.tokens_delivered, account.tokens_wasted, account.engine_wasted_s, account.money_wasted) == (10, 0, 0, 0)
        assert account.tokens_saved == 15 and account.money_saved == pytest.approx(15 * 24.0 / 10)

    def test_one_whose_whole_answer_nobody_got(self) -> None:
        account = self.booked(ended(reasons.CLIENT_FIN, stream=False))
        assert (account.tokens_delivered, account.tokens_wasted, account.engine_wasted_s, account.money_wasted) == (
            0,
            10,
            4.0,
            24.0,
        )

    def test_one_that_left_before_its_first_token(self) -> None:
        account = self.booked(ended(reasons.CLIENT_FIN, tokens=0))
        assert (account.tokens_wasted, account.engine_wasted_s, account.money, account.money_wasted) == (0, 4.0, 4.0, 4.0)
        assert (account.tokens_saved, account.money_saved) == (25, 0.0), "what a token costs is not known of it"

    def test_money_is_nothing_where_nothing_has_a_price(self) -> None:
        account = self.booked(ended(reasons.CLIENT_FIN), price=FREE)
        assert account.money == account.money_saved == 0 and account.engine_s == 4.0

    def test_sums(self) -> None:
        one, other = self.booked(ended(reasons.COMPLETED)), self.booked(ended(reasons.CLIENT_FIN, stream=False))
        one.add(other)
        assert (one.calls, one.tokens_in, one.tokens_delivered, one.tokens_wasted) == (2, 14, 10, 10)
        assert (one.engine_s, one.money, one.money_wasted, one.tokens_saved) == (8.0, 48.0, 24.0, 15)

    def test_had_nobody_got_anything(self) -> None:
        account = self.booked(ended(reasons.COMPLETED)).as_wasted()
        assert (account.tokens_delivered, account.tokens_wasted, account.engine_wasted_s, account.money_wasted) == (
            0,
            10,
            4.0,
            24.0,
        )
        assert (account.calls, account.tokens_in, account.engine_s, account.money) == (1, 7, 4.0, 24.0)

    def test_price(self) -> None:
        assert Price(per_hour=7200.0).of(3.0, 1e6) == 6.0 and Price(per_million_tokens=5.0).of(3.0, 2e6) == 10.0

    def test_what_nobody_explains(self) -> None:
        assert unexplained("gpu", 5) == ("", "", "gpu", "zombie", Account(tokens_wasted=5))


class TestSaved:
    @pytest.mark.parametrize("reason", [reasons.CLIENT_FIN, reasons.TOTAL_TIME, reasons.KILLED, reasons.DRAINED])
    def test_ends_that_spare_the_rest(self, reason: Reason) -> None:
        assert saved(ended(reason), 25.9, 30.0) == (15, 45.0)

    def test_nothing_is_spared(self) -> None:
        assert saved(ended(reasons.ENGINE_DIED), 25.0, 30.0) == (0, 0.0), "by an engine that failed"
        assert saved(ended(reasons.CLIENT_FIN), 10.0, 30.0) == (0, 0.0), "of an answer that was long enough"
        finished, waiting = ended(reasons.CLIENT_FIN), Call("id", 0.0)
        finished.engine_finished = True
        waiting.end(reasons.CLIENT_FIN, 1.0)
        assert saved(finished, 25.0, 30.0) == (0, 0.0), "when the engine was done"
        assert saved(waiting, 25.0, 30.0) == (0, 0.0), "of one that no engine had"


class TestAfterlife:
    def left(self, id: str, at: float) -> PendingStop:
        return PendingStop(id, at, tenant=id, model="m", cause="client_gone")

    def test_shares_go_by_the_time_that_each_ran_on(self) -> None:
        owners = [self.left("a", 0.0), self.left("b", 5.0)]
        parts = zombie_shares.share(owners, 100, 3.0, 0.0, 10.0)
        assert [(part.stop.call_id, part.tokens) for part in parts] == [("a", 67), ("b", 33)]
        assert [part.engine_s for part in parts] == [pytest.approx(2.0), pytest.approx(1.0)]
        assert [part.tokens for part in zombie_shares.share(owners, 100, 0.0, 5.0, 10.0)] == [50, 50], "since the last time"
        owners[0].released_at = 5.0
        assert [part.tokens for part in zombie_shares.share(owners, 100, 0.0, 0.0, 10.0)] == [50, 50], "until it was gone"

    def test_shares_go_by_slots_where_these_tell(self) -> None:
        owners = [self.left("a", 0.0), self.left("b", 0.0)]
        owners[0].tokens_now, owners[0].account.tokens_recorded, owners[1].tokens_now = 40, 10, 90
        assert [part.tokens for part in zombie_shares.share(owners, None, 0.0, 0.0, 10.0)] == [30, 90]
        assert [part.tokens for part in zombie_shares.share(owners, 60, 0.0, 0.0, 10.0)] == [15, 45]
        assert zombie_shares.share([], 100, 3.0, 0.0, 10.0) == []

    def test_whole_numbers_lose_no_token(self) -> None:
        owners = [self.left(str(at), 0.0) for at in range(7)]
        for tokens in range(30):
            parts = zombie_shares.share(owners, tokens, 0.0, 0.0, 1.0)
            assert sum(part.tokens for part in parts) == tokens and all(part.tokens >= 0 for part in parts)

    def test_what_is_booked_and_what_was_not_saved_after_all(self) -> None:
        owner = self.left("ann", 0.0)
        [part] = zombie_shares.share([owner], 6, 2.0, 0.0, 1.0)
        wasted = Account(tokens_wasted=6, engine_s=2.0, engine_wasted_s=2.0, money=14.0, money_wasted=14.0)
        assert zombie_shares.entry("gpu", part, PRICE) == ("ann", "m", "gpu", "zombie", wasted)
        owner.account.saved = (15, 45.0)
        undone = Account(tokens_saved=-15, money_saved=-45.0)
        assert zombie_shares.not_saved("gpu", owner) == ("ann", "m", "gpu", "client_gone", undone)
        assert owner.account.saved == (0, 0.0)

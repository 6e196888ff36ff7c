"""What recent calls predict about the next one, and when they predict nothing."""

from __future__ import annotations

import math

import pytest

from hangup.core.admission.estimates import FirstTokenTime, Lengths, Rate, StepTime


class TestFirstTokenTime:
    @staticmethod
    def line(times: int = 20) -> FirstTokenTime:
        """Return 0.1 s plus a millisecond per token."""
        estimate = FirstTokenTime()
        for at in range(times):
            tokens = 100 * (1 + at % 4)
            estimate.observe(tokens, 0.1 + 0.001 * tokens, float(at))
        return estimate

    def test_it_is_a_line_over_the_prompt(self) -> None:
        assert self.line().predict(250, 19.0) == pytest.approx(0.35)
        assert self.line().predict(0, 19.0) == pytest.approx(0.1)

    def test_little_or_old_or_far_is_nothing(self) -> None:
        assert self.line(7).predict(100, 7.0) is None
        assert self.line(8).predict(100, 7.0) is not None
        assert self.line().predict(100, 49.0) is not None and self.line().predict(100, 49.1) is None
        assert self.line().predict(790, 19.0) is not None and self.line().predict(801, 19.0) is None

    def test_prompts_of_one_size_have_their_mean(self) -> None:
        estimate = FirstTokenTime()
        for at in range(10):
            estimate.observe(100, 0.2, float(at))
        assert estimate.predict(150, 9.0) == pytest.approx(0.2)

    def test_it_never_falls_with_the_size_nor_begins_below_zero(self) -> None:
        falls, steep = FirstTokenTime(), FirstTokenTime()
        for at in range(20):
            falls.observe(100 + at, 1.0 - at / 100, float(at))
            steep.observe(100 + at, (at + 1) / 10, float(at))
        low, high = falls.predict(1, 19.0), falls.predict(200, 19.0)
        assert low is not None and low == high
        least = steep.predict(1, 19.0)
        assert least is not None and 0 <= least < 1

    def test_what_scatters_is_taken_on_the_safe_side(self) -> None:
        estimate = FirstTokenTime()
        for at in range(400):
            estimate.observe(100, 1.0 if at % 2 else 2.0, float(at))
        assert estimate.predict(100, 399.0) == pytest.approx(2.0, rel=0.05)


class TestStepTime:
    def test_it_is_believed_after_eight_and_for_half_a_minute(self) -> None:
        step = StepTime()
        for at in range(7):
            step.observe(0.1, float(at))
            assert step.mean == pytest.approx(0.1)
        assert step.get(7.0) is None
        step.observe(0.1, 7.0)
        assert step.get(37.0) == pytest.approx(0.1) and step.get(37.1) is None

    def test_a_fifth_of_each_new_one_counts(self) -> None:
        step = StepTime()
        step.observe(0.1, 0.0)
        step.observe(0.2, 1.0)
        assert step.mean == pytest.approx(0.12)


class TestLengths:
    @staticmethod
    def seen(*tokens: int) -> Lengths:
        lengths = Lengths()
        for one in tokens:
            lengths.observe(one)
        return lengths

    def test_shares_and_quantiles(self) -> None:
        lengths = self.seen(*[10] * 30, *[1000] * 10)
        assert lengths.share_within(0) == 0.0 and lengths.share_within(1) == 0.0
        assert lengths.share_within(10) == lengths.share_within(500) == 0.75 and lengths.share_within(1000) == 1.0
        assert lengths.mean == pytest.approx(257.5)
        assert 10 <= lengths.quantile(0.5) < 16 and lengths.quantile(0.75) < 16 and 1000 <= lengths.quantile(0.76) < 1500

    def test_answers_of_one_token_or_none(self) -> None:
        lengths = self.seen(0, 1)
        assert lengths.share_within(1) == 1.0 and lengths.quantile(1.0) < 2

    def test_eight_are_enough(self) -> None:
        assert not self.seen(*[5] * 7).known and self.seen(*[5] * 8).known

    def test_it_forgets(self) -> None:
        lengths = self.seen(*[10] * 1000, *[1000] * 2000)
        assert lengths.share_within(500) < 0.05 and lengths.mean > 950
        assert lengths.share_within(1000) == pytest.approx(1.0)

    def test_there_is_no_length_beyond_the_last(self) -> None:
        lengths = self.seen(10**12)
        assert lengths.share_within(10**12) == 1.0 and lengths.quantile(1.0) < math.inf


class TestRate:
    def test_events_a_second(self) -> None:
        rate = Rate()
        for _ in range(200):
            rate.pass_time(0.1)
            rate.add()
        assert rate.per_s == pytest.approx(10.0, rel=0.05)

    def test_it_forgets_over_five_seconds(self) -> None:
        rate = Rate()
        for _ in range(200):  # 10 a second, for much longer than is remembered
            rate.pass_time(0.5)
            rate.add(5)
        assert rate.per_s == pytest.approx(10, rel=0.06)  # the last half second's have not faded yet
        remembered_s = 0.5 / (1 - math.exp(-0.5 / 5))
        for _ in range(2):
            before = rate.per_s
            rate.pass_time(5.0)  # nothing happens in it
            remembered_s, was = remembered_s / math.e + 5, remembered_s
            assert before is not None and rate.per_s == pytest.approx(before * was / math.e / remembered_s)

    def test_a_few_say_nothing_until_time_has_passed(self) -> None:
        rate = Rate()
        rate.add(7)
        rate.pass_time(1.0)
        assert rate.per_s is None
        rate.add(3)  # of the seven, 5.7 have not faded
        assert rate.per_s is not None
        slow = Rate()
        slow.pass_time(30.0)
        slow.add()
        assert slow.per_s == pytest.approx(1 / 30), "one in a long time is no chance"
        quick = Rate()
        quick.add(100)
        quick.pass_time(0.2)
        assert quick.per_s is None, "nor is a moment enough"

"""A whole probe: meets the endpoint, finds evidence, plays the cases, checks after each that the stack still serves."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from hangup import __version__
from hangup.probe.budget import BudgetSpent, ProbeBudget
from hangup.probe.by_echo import EchoTrials, find_slots, is_held_back
from hangup.probe.by_figures import FiguresTrial
from hangup.probe.by_usage import UsageRecords, UsageTrial, find_records
from hangup.probe.caller import Caller, CallKind, connect_problem, resolve, tls_context
from hangup.probe.cases import CASES, Case, Company, Moment
from hangup.probe.connection import RATE_LIMIT, ProbeConnection
from hangup.probe.echo import QUIET_MIN, QuietTimes
from hangup.probe.endpoint import Endpoint, ProbeError, is_near, parse, parse_page
from hangup.probe.meet import ANSWER_S, Speed, canary, faster, first_token_time, long_first_token_time, measure_speed, meet
from hangup.probe.report import CaseResult, ProbeReport
from hangup.probe.stage import Scene, Stage, Unplayable
from hangup.probe.usage import USAGE
from hangup.probe.verdict import Judgement, Ruling, untold
from hangup.probe.watch import EngineWatch, find_figures, find_version, no_figures

_CROWD_S = 1.5  # how long the calls shall run whose slots are counted
_REST_S = 3.0  # how long an abandoned answer shall go on, so that a stop can be told from its own end
_QUIET_WITH_FIGURES = 5
_QUIET_FAILURES_MAX = 3  # a call that fails is made up for by another; so many are no chance
_CANARIES, _CANARY_PAUSE_S = 3, 0.5  # so many must fail before the stack counts as broken
_RATE_LIMIT_S, _RATE_LIMIT_PAUSE_S = 65.0, 5.0  # limits are mostly counted by the minute
_OWN_ENDS = 3  # more answers to read, if one ended by itself
_LEFT_OVER_S = 2.0  # calls without clients for which the engine computes nothing for so long are lost
_SLOWER = 3.0  # first tokens so many times later than the latest undisturbed one are worth a note
_GROWTH = 1.5  # of memory or descriptors of the engine's process
_DESCRIPTORS_SPARE = 8

Progress = Callable[[str, Case | None, Judgement | None], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    url: str
    model: str = ""
    api: str = ""  # "": find out
    api_key: str = ""
    engine_metrics: str = ""
    cases: tuple[Case, ...] = tuple(CASES.values())
    within_s: float = 1.0  # a stop later than that is late
    rest_s: float = _REST_S
    slots: int = 0  # 0: find out
    clients: int = 8  # at most so many at once, a storm aside
    storm: int = 32
    budget: ProbeBudget = field(default_factory=ProbeBudget)
    ca_file: str = ""
    insecure: bool = False
    command: str = ""
    name: str = ""


def _silent(text: str, case: Case | None, judgement: Judgement | None) -> None:
    pass


async def run_probe(options: ProbeOptions, progress: Progress = _silent) -> ProbeReport:
    """Probe one endpoint; raise `ProbeError` if it cannot be probed. Nothing is left open, however this ends."""
    caller = await _caller(parse(options.url), options)
    engine_caller = caller
    page = ""
    if options.engine_metrics:
        engine, page = parse_page(options.engine_metrics)
        engine_caller = await _caller(engine, replace(options, api_key=""))  # the key is not meant for that host
    try:
        return await ProbeSession(options, caller, engine_caller, page, progress).run()
    except (OSError, TimeoutError) as error:
        raise connect_problem(caller.endpoint, error) from None
    except Unplayable as reason:
        what = "refuses calls now" if RATE_LIMIT in str(reason) else "broke before any client left"
        raise ProbeError(f"{caller.endpoint.url} {what}: {reason}") from None
    except BudgetSpent as spent:
        raise ProbeError(f"meeting {caller.endpoint.url} alone takes more than {spent}") from None
    finally:
        caller.close()
        engine_caller.close()


async def is_far(endpoint: Endpoint) -> bool:
    """Return whether an endpoint is neither on this machine nor on a private network."""
    return not all(is_near(str(address[0])) for _, address in await resolve(endpoint))


async def _caller(endpoint: Endpoint, options: ProbeOptions) -> Caller:
    caller = Caller(endpoint, await resolve(endpoint), options.api_key, options.budget)
    if endpoint.tls:
        caller.use_tls(tls_context(options.ca_file, insecure=options.insecure))
    return caller


class ProbeSession:
    def __init__(self, options: ProbeOptions, caller: Caller, engine_caller: Caller, page: str, progress: Progress) -> None:
        self._options = options
        self._caller = caller
        self._engine_caller = engine_caller
        self._page = page
        self._progress = progress
        self._watch: EngineWatch | None = None
        self._records: UsageRecords | None = None
        self._notes: list[str] = []
        self._results: list[CaseResult] = []
        self._is_dead = False
        self._limit = ""  # what a rate limit says that does not end
        self._lost = 0  # calls that the engine keeps though no client waits for them

    async def run(self) -> ProbeReport:
        began_at = time.monotonic()
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        self._say("asks the endpoint what it is")
        upkeep = await self._in_time(self._get_ready())
        for case in self._options.cases:
            self._progress("", case, None)
            judgement = await self._judged(case)
            self._results.append(CaseResult(case, judgement))
            self._progress("", case, judgement)
        version = ""
        with contextlib.suppress(BudgetSpent):
            await self._in_time(self._check_growth(upkeep))
            version = await self._in_time(self._version())
        budget = self._options.budget
        return ProbeReport(
            url=self._caller.endpoint.url,
            api=self._caller.dialect.name,
            model=self._caller.model,
            version=version,
            date=date,
            command=self._options.command,
            hangup_version=__version__,
            evidence=self._evidence,
            answer_tokens=self._stage.tokens,
            rate=round(self._stage.speed.rate, 1),
            first_token_s=round(self._quiet.middle, 4),
            slots=self._slots,
            calls=budget.calls,
            tokens=budget.tokens,
            seconds=round(time.monotonic() - began_at, 1),
            results=tuple(self._results),
            notes=tuple(self._notes),
            name=self._options.name,
        )

    def _say(self, text: str) -> None:
        self._progress(text, None, None)

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work within what is left of the seconds; raise `BudgetSpent` if it takes longer."""
        budget = self._options.budget
        try:
            async with asyncio.timeout(max(budget.seconds_max - self._elapsed_s, 0.0)) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise budget.out_of_time() from None
            raise

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._caller.began_at

    # Before the cases

    async def _get_ready(self) -> tuple[float | None, float | None]:
        """Meet the endpoint and prepare everything; return the memory and the descriptors of the engine's process."""
        await meet(self._caller, self._options.api, self._options.model)
        self._say(f"{self._caller.dialect.name} API, model {self._caller.model or '(default)'}; measures its speed")
        speed = await measure_speed(self._caller)
        self._watch = await find_figures(self._engine_caller, self._page)
        if self._watch is None and self._options.engine_metrics:  # who names a page does not want to be judged by an echo
            await no_figures(self._engine_caller, self._page)
        await self._prepare(speed)
        return await self._watch.upkeep() if self._watch is not None else (None, None)

    async def _prepare(self, speed: Speed) -> None:
        """Measure what is undisturbed, and find the evidence that verdicts can be based on."""
        long_s = await long_first_token_time(self._caller) or speed.first_token_s
        source = self._watch.source if self._watch is not None else None
        coarse_s = max(source.silent_pace_s, source.lag_s) * 6 if source is not None else 0.0
        rest_s = max(self._options.rest_s, self._options.within_s * 2, coarse_s if coarse_s > _REST_S else 0.0)
        self._stage = Stage(self._caller, speed, long_s, rest_s)
        await self._read_whole_answer()
        self._quiet = await self._undisturbed(_QUIET_WITH_FIGURES if self._watch is not None else QUIET_MIN)
        self._slots = self._options.slots or (self._watch.slots if self._watch is not None else 0)
        if not self._slots:
            self._say("looks for the number of its slots")
            self._slots = await self._find_slots()
        if self._watch is None and self._slots and not await self._holds_back():
            self._notes.append(f"{self._slots} streams at once do not hold another call back: there is no echo")
            self._slots = 0
        if self._watch is not None:
            self._watch.slots = self._slots
        self._say(f"{self._stage.tokens} tokens an answer at {speed.rate:.0f} a second; evidence: {self._evidence}")

    @property
    def _evidence(self) -> str:
        if self._watch is not None:
            return f"the engine's own figures ({self._watch.where})"
        found = [f"the echo of canary calls, {self._slots} slots"] if self._slots else []
        found += [f"{USAGE} ({self._records.where})"] if self._records is not None else []
        return "; else ".join(found) or "none"

    async def _read_whole_answer(self) -> None:
        """Read one whole answer while looking at the figures: they must show it, and its tokens.

        Other load makes an engine slower than it is, and never faster: the best speed seen is the one to reckon with.
        """
        others = await self._watch.until_idle(5.0) if self._watch is not None else 0
        if others:
            self._notes.append(f"other clients use the engine: its figures show {others} calls before the probe has any")
        before = await self._watch.look() if self._watch is not None else None
        asked = self._stage.tokens
        (call,) = await self._stage.hold(1)
        try:
            if self._watch is not None and not await self._is_shown(self._watch, call, others):
                self._notes.append(f"the figures of {self._watch.where} do not show the probe's calls, so they are not used")
                self._watch = None
            whole = await call.read_whole(self._stage.patience_s)
        finally:
            call.close()
        if not whole:
            what = f"was cut: {call.refused}" if call.refused else "stalled"
            raise Unplayable(f"an answer that was read to its end {what}, after {call.events} of {asked} tokens")
        self._stage.speed = faster(self._stage.speed, call)
        if self._watch is not None and before is not None and before.status.tokens is not None:
            await asyncio.sleep(self._watch.source.lag_s)
            after = await self._watch.look()
            computed = (after.status.tokens or 0) - before.status.tokens if after is not None else 0
            self._stage.speed = self._stage.speed.counting(computed / max(call.events, 1))
        elif self._watch is None and (found := await find_records(self._caller, call)) is not None:
            self._records, tokens_per_event = found
            self._stage.speed = self._stage.speed.counting(tokens_per_event)
        else:
            self._stage.speed = self._stage.speed.counting((call.usage or 0) / max(call.events, 1))
        came = round(call.tokens(self._stage.speed.tokens_per_event))
        if came < asked * 0.8:
            await self._find_own_end(came, asked)

    async def _find_own_end(self, came: int, asked: int) -> None:
        """Read more whole answers, of an engine that ends them itself; the shortest is the one to reckon with."""
        lengths = [came]
        for _ in range(_OWN_ENDS):
            (call,) = await self._stage.hold(1)
            try:
                await call.read_whole(self._stage.patience_s)
            finally:
                call.close()
            lengths.append(round(call.tokens(self._stage.speed.tokens_per_event)))
        self._stage.own_end = max(min(lengths), 1)
        said = f"answers end by themselves after {min(lengths)} to {max(lengths)} of {asked} tokens"
        self._notes.append(f"{said}: less can be told")

    async def _holds_back(self) -> bool:
        """Return whether full slots delay another call: if not, an echo would take everything for a stop."""
        try:
            for _ in range(2):  # on a busy machine one trial may fail by chance
                if await is_held_back(self._caller, self._stage, self._quiet, self._slots):
                    return True
        except (Unplayable, BudgetSpent):
            pass
        return False

    async def _is_shown(self, watch: EngineWatch, call: ProbeConnection, others: int) -> bool:
        deadline = time.monotonic() + self._stage.answer_s * 0.8
        while not call.ended and time.monotonic() < deadline:
            found = await watch.look()
            if found is not None and found.status.work > others:
                return True
            await asyncio.sleep(watch.source.pace_s)
        return False

    async def _undisturbed(self, count: int) -> QuietTimes:
        found, failures = list[float](), list[str]()
        while len(found) < count and len(failures) < _QUIET_FAILURES_MAX:
            time_s, failure = await canary(self._caller, None, ANSWER_S)
            if time_s is None:
                failures.append(failure)
            else:
                found.append(time_s)
        if failures:
            self._notes.append(f"{len(failures)} of {len(found) + len(failures)} undisturbed calls failed: {failures[0]}")
        return QuietTimes(tuple(found) or (ANSWER_S,))

    async def _find_slots(self) -> int:
        try:
            if self._watch is None:
                return await find_slots(self._caller, self._stage, self._quiet, self._options.clients)
            return await self._count_slots(self._watch)
        except BudgetSpent:
            return 0
        except (Unplayable, OSError, TimeoutError) as error:
            if await first_token_time(self._caller, timeout_s=self._stage.patience_s) is None:
                raise Unplayable(f"several calls at once: {error}") from None
            return 0

    async def _count_slots(self, watch: EngineWatch) -> int:
        """Send one call more than the probe would like as a crowd, and look how many of them wait."""
        seconds = watch.source.lag_s + _CROWD_S
        kind = CallKind(min(math.ceil(seconds * self._stage.speed.rate) + 8, self._stage.tokens))
        calls: list[ProbeConnection] = []
        try:
            for _ in range(self._options.clients + 1):
                calls.append(await self._caller.start(kind))  # noqa: PERF401 - those before a failure must be known
            await calls[0].until(lambda c: c.events >= 4, self._stage.patience_s)
            await asyncio.sleep(watch.source.lag_s + 0.2)
            found = await watch.look()
            for call in calls:  # they end by themselves: nobody has left yet, and an engine may not bear it
                await call.until_end(self._stage.answer_s * 9 + self._stage.patience_s)
            return found.status.running if found is not None and found.status.waiting else 0
        finally:
            for call in calls:
                call.close()
            await watch.until_idle(self._stage.answer_s * 3 + 10)

    # The cases

    async def _judged(self, case: Case) -> Judgement:
        """Play one case. What goes wrong in it is a finding."""
        if self._is_dead:
            return untold("not played: the stack no longer serves")
        if self._limit:
            return untold(f"not played: a rate limit refuses calls ({self._limit})")
        try:
            self._options.budget.check_time(self._elapsed_s)
            judgement = await self._in_time(self._by_best_evidence(case))
        except Unplayable as reason:
            judgement = untold(str(reason))
        except BudgetSpent as spent:
            return untold(f"not played: it does not fit {spent}")
        except (OSError, TimeoutError) as error:
            judgement = untold("; ".join(connect_problem(self._caller.endpoint, error).problems))
        try:
            return await self._in_time(self._still_serves(judgement))
        except BudgetSpent:
            return judgement

    async def _by_best_evidence(self, case: Case) -> Judgement:
        if self._watch is not None:
            return await self._by_figures(case)
        judgement = await self._by_echo(case)
        if self._records is None or judgement.ruling is not Ruling.UNTOLD:
            return judgement
        return await self._by_usage(case, self._records)

    async def _by_usage(self, case: Case, records: UsageRecords) -> Judgement:
        leavers, live = self._clients_of(case)
        judgement, scene = await UsageTrial(self._stage, records, self._options.within_s).play(case, leavers, live)
        return judgement if scene is None else await self._others_end(scene, judgement)

    def _clients_of(self, case: Case) -> tuple[int, int]:
        """Return how many clients leave, and how many stay."""
        crowd = min(self._slots or self._options.clients, self._options.clients)
        if case.company is Company.BESIDE:
            return 1, 1
        if case.company is Company.ALONE:
            return 1, 0
        live = 1 if crowd > 1 else 0
        return (crowd - live if case.company is Company.SLOTS else min(4 * crowd, self._options.storm)), live

    async def _by_figures(self, case: Case) -> Judgement:
        assert self._watch is not None
        if self._lost:
            return untold(f"not played: the engine keeps {_calls(self._lost)} that no client waits for")
        leavers, live = self._clients_of(case)
        if case.moment is Moment.QUEUE:
            if not self._slots or self._slots > self._options.clients:
                return untold(f"no call waits behind {self._options.clients} others (--slots, --clients)")
            live = self._slots
        elif case.company is Company.BESIDE and self._slots == 1:
            return untold("the engine has one slot: there is no place for another client")
        trial = FiguresTrial(self._stage, self._watch, self._options.within_s)
        judgement, scene = await trial.play(case, leavers, live)
        return judgement if scene is None else await self._cleared(scene, judgement)

    async def _cleared(self, scene: Scene, judgement: Judgement) -> Judgement:
        """Wait for the others' streams to end, and for the engine to become idle."""
        assert self._watch is not None
        judgement = await self._others_end(scene, judgement)
        if not await self._watch.until_idle(self._stage.answer_s * 2 + 5):
            return judgement
        with contextlib.suppress(OSError, TimeoutError, BudgetSpent):  # some figures are as old as the engine's last step
            await first_token_time(self._caller, timeout_s=self._stage.patience_s)
        work, stands_still = await self._watch.left_over(_LEFT_OVER_S)
        if not work or not stands_still:
            return judgement.with_note(f"the engine still reports {_calls(work)}") if work else judgement
        self._lost = work
        return judgement.broke(f"the engine keeps {_calls(work)} that no client waits for, and computes nothing")

    async def _others_end(self, scene: Scene, judgement: Judgement) -> Judgement:
        try:
            for call in scene.leavers:
                call.close()
            others = scene.live if scene.case.company is not Company.ALONE else []
            for call in others:
                whole = await call.read_whole(self._stage.patience_s)
                if not whole or call.refused:
                    judgement = judgement.broke(f"another client's stream was cut: {call.refused or 'it stalled'}")
        finally:
            scene.close()
        return judgement

    async def _by_echo(self, case: Case) -> Judgement:
        if not self._slots:
            return untold(
                f"the endpoint reports nothing, and {self._options.clients} streams do not delay another call "
                "(--engine-metrics, --slots, --clients)"
            )
        trials = EchoTrials(self._caller, self._stage, self._slots, self._quiet, self._options.within_s)
        return await trials.play(case)

    async def _still_serves(self, judgement: Judgement) -> Judgement:
        """Send a canary: a departure must not cost others their answers. One that fails at once may be a chance: try again."""
        patience_s = max(self._stage.answer_s * 3, self._quiet.middle * 20, 10.0)
        took_s, failures = None, list[str]()
        while took_s is None and len(failures) < _CANARIES:
            try:
                took_s, failure = await self._admitted_canary(patience_s)
            except OSError as error:
                failure = "; ".join(connect_problem(self._caller.endpoint, error).problems)
            if failure.startswith(RATE_LIMIT):
                self._limit = failure
                return judgement.with_note(f"a rate limit refuses calls: {failure}")
            if took_s is None:
                failures.append(failure)
                await asyncio.sleep(_CANARY_PAUSE_S)
        if took_s is None:
            self._is_dead = True
            return judgement.broke(f"a new call is not answered any more: {failures[-1]}")
        if failures:
            judgement = judgement.with_note(f"{len(failures)} of {len(failures) + 1} new calls failed: {failures[0]}")
        if took_s > max(self._quiet.times) * _SLOWER + 1.0:
            return judgement.with_note(f"the next call's first token took {took_s:.1f} s, {self._quiet.middle:.2f} s before")
        return judgement

    async def _admitted_canary(self, patience_s: float) -> tuple[float | None, str]:
        """Send a canary; if a rate limit refuses it, try again until its minute is over: a limit is no breakdown."""
        deadline = time.monotonic() + _RATE_LIMIT_S
        while True:
            took_s, failure = await canary(self._caller, None, patience_s)
            if not failure.startswith(RATE_LIMIT) or time.monotonic() > deadline:
                return took_s, failure
            self._say(f"waits for a rate limit: {failure}")
            await asyncio.sleep(_RATE_LIMIT_PAUSE_S)

    # After the cases

    async def _check_growth(self, before: tuple[float | None, float | None]) -> None:
        if self._watch is None or self._is_dead:
            return
        memory, descriptors = await self._watch.upkeep()
        if before[0] and memory and memory > before[0] * _GROWTH:
            self._notes.append(f"the engine's memory grew from {before[0] / 2**20:.0f} to {memory / 2**20:.0f} MiB")
        if before[1] and descriptors and descriptors > before[1] + _DESCRIPTORS_SPARE:
            self._notes.append(f"the engine's open descriptors grew from {before[1]:.0f} to {descriptors:.0f}")

    async def _version(self) -> str:
        return "" if self._is_dead else await find_version(self._engine_caller)


def _calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"

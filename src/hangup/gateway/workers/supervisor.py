"""The parent of the workers: starts them, replaces those that die or hang, passes on signals, and holds what they share.

SIGTERM and SIGINT drain all workers, and cut the drain short when they come again. SIGHUP reloads the configuration in all
workers, SIGUSR2 replaces the workers one after another, each by a new one that is ready before the old one drains.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hangup.config.load import Configuration
from hangup.core.clocks import Backoff
from hangup.core.deadline import Deadline
from hangup.core.members import LearnedFigures, LeftCall, PlaceReport, TenantUse, TokensCharged
from hangup.core.members.pace import LOOK_S
from hangup.errors import HangupError
from hangup.gateway import ports
from hangup.gateway.admin.server import AdminServer
from hangup.gateway.exit_watch import EXIT_WATCH
from hangup.gateway.fixed_settings import check_reload, with_fixed
from hangup.gateway.members.hub import Hub
from hangup.gateway.members.member import CallsReport
from hangup.gateway.server import open_log
from hangup.gateway.service_manager import SERVICE_MANAGER
from hangup.gateway.stderr import write_stderr
from hangup.gateway.store.ledger import create_ledger
from hangup.gateway.workers import metrics
from hangup.gateway.workers.admin import WholeAdmin, make_whole_app
from hangup.gateway.workers.channel import Message, packed
from hangup.gateway.workers.engines import EngineProcesses
from hangup.gateway.workers.followed_jobs import FollowedJobs
from hangup.gateway.workers.process import WorkerProcess
from hangup.gateway.workers.server import SETTLE_S
from hangup.gateway.workers.settings import check_as_worker, for_worker, ledger_path, undrained
from hangup.gateway.workers.store_admin import StoreWorkersAdmin
from hangup.tasks import TASKS, Tasks

_RESTART_S = (0.1, 15.0)  # pause before a dead worker is replaced: doubled by each death that soon follows another
_START_S = 120.0  # a worker that is not ready by then is replaced
_END_S = 10.0  # a worker that closed its end of the channel has this long to exit
_LATE_S = 2.0  # after the time by which all workers should have exited: then those that are left are killed


class Supervisor:
    def __init__(
        self, configuration: Configuration, load: Callable[[], Configuration], count: int, wait_for_engine: str = ""
    ) -> None:
        """`wait_for_engine` names a backend with `spawn` that must be up before clients are served."""
        self.count = count
        self.by_slot: list[WorkerProcess | None] = [None] * count
        self.restarts = 0  # workers that were replaced because they died or hung
        self.drained_backends: set[str] = set()  # by operators, for workers that start later
        self.draining = False
        self.retired_counters: metrics.Families = {}  # what workers had counted before they ended
        self.configuration = configuration
        self._at_start = configuration.settings
        self._load = load
        self._hub = Hub(self._tell_worker)
        self._members = self._hub.members
        self._followed_jobs = FollowedJobs(self._tell_worker, self._others_than)
        self._wait_for_engine = wait_for_engine
        self._all: dict[str, WorkerProcess] = {}  # by name, with those that are leaving
        self._generations = 0
        self._pauses = [Backoff(*_RESTART_S) for _ in range(count)]
        self._changed = asyncio.Event()  # set and cleared at once: a worker became ready, or ended
        self._deadline = Deadline(0.0)  # of the shutdown
        self._started = asyncio.Event()  # all workers have been ready
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._tasks = Tasks("worker")
        self._shown: set[str] = set()  # texts of workers that were shown since the last reload
        self._restarting: set[int] = set()  # slots whose workers have been replaced: one that fails then is tried again
        self._rolling = asyncio.Lock()  # one reload or roll at a time

    async def run(self, announce: Callable[[str, str], None]) -> None:
        settings = self.configuration.settings
        self._policy = policy = ports.admin_policy(settings)
        self._sockets = ports.listen_for_workers(settings, self.count)
        self._admin_host = settings.admin_host  # the admin port listens on it until a restart
        admin_sock = ports.listen("admin_port", settings.admin_host, settings.admin_port, settings)
        self._port: int = self._sockets[0].getsockname()[1]
        self._log = open_log(settings, shared=True)
        TASKS.on_failure = self._log.task_failed
        self._engines = EngineProcesses(self._hub.calls_in, self._log.event)
        self._catch_signals()
        with tempfile.TemporaryDirectory(prefix="hangup-") as folder:
            self._folder = Path(folder)
            await asyncio.to_thread(create_ledger, ledger_path(settings, self._folder), settings.limits.wal_bytes_max)
            admin = AdminServer(make_whole_app(self._admin(), policy), admin_sock, settings.limits)
            try:
                self._engines.use(settings.backend, settings.limits.stop_s)
                if self._wait_for_engine:
                    await self._engines.wait_until_open(self._wait_for_engine, self._stop.is_set)
                if not await self._start_all():
                    return
                self._started.set()
                self._tasks.keep("supervisor", self._look_for_ever)
                admin_task = TASKS.start("admin", admin.run_until_stopped())
                announce(
                    ports.url_of(self._sockets[0].getsockname(), bool(settings.tls_cert)),
                    ports.url_of(admin_sock.getsockname(), False),
                )
                self._log.begin()
                await self._stop.wait()
                await self._drain()
                admin.stop()
                await asyncio.gather(admin_task, return_exceptions=True)
            finally:
                self.draining = True
                for worker in self._all.values():
                    worker.kill()
                await self._wait_until(lambda: not self._all, _END_S)
                if count := self._followed_jobs.unfinished():
                    self._log.event("provider_jobs_unfinished", count=count)
                await self._engines.close(max(_LATE_S, self._deadline.left(time.monotonic())))
                await self._tasks.close()
                self._hub.stops.close()
                for sock in self._sockets:
                    sock.close()
                self._log.close()

    def _admin(self) -> WholeAdmin:
        return StoreWorkersAdmin(self) if self._at_start.shared_state else WholeAdmin(self)

    # Workers

    def answering_workers(self) -> list[WorkerProcess]:
        """Return the workers that answer; those that are leaving still have calls."""
        return [worker for worker in self._all.values() if worker.ready and not self._members.is_silent(worker.name)]

    def serving_workers(self) -> list[WorkerProcess]:
        """Return those of them that take new calls, by their slots."""
        answering = self.answering_workers()
        return [worker for worker in self.by_slot if worker in answering and worker is not None and not worker.leaving]

    def silent_workers(self) -> list[WorkerProcess]:
        """Return the workers that do not answer, but are still there."""
        return [worker for worker in self._all.values() if worker.ready and self._members.is_silent(worker.name)]

    def leading_worker(self) -> WorkerProcess | None:
        """Return the worker that judges the engines for all."""
        return self._all.get(self._members.leader or "")

    def fault(self, error: Exception) -> None:
        self._log.fault(error)

    def silent_slots(self) -> list[int]:
        """Return the slots without a worker that takes new calls."""
        serving = {worker.slot for worker in self.serving_workers()}
        return [slot for slot in range(self.count) if slot not in serving]

    async def _start_all(self) -> bool:
        """Start all workers; return False if a signal came before they were ready."""
        workers = await asyncio.gather(*map(self._start, range(self.count)))
        try:
            async with asyncio.timeout(_START_S):
                while not self._stop.is_set() and not all(worker.ready for worker in workers):
                    for worker in workers:
                        if worker.name not in self._all:
                            why = worker.failure or f"worker {worker.slot} exited with code {worker.process.returncode}"
                            raise HangupError(why)
                    await self._changed.wait()
        except TimeoutError:
            late = next(worker for worker in workers if not worker.ready)
            raise HangupError(f"worker {late.slot} was not ready within {_START_S:g} s") from None
        return not self._stop.is_set()

    async def _start(self, slot: int, *, replaces: bool = True) -> WorkerProcess:
        """Start a worker; `replaces`: it has the slot from now on."""
        self._generations += 1
        worker = await WorkerProcess.start(slot, f"{slot}.{self._generations}", self._sockets)
        self._all[worker.name] = worker
        if replaces:
            self.by_slot[slot] = worker
        settings = with_fixed(self._at_start, self.configuration.settings)
        text = self._packed(replace(self.configuration, settings=settings))
        worker.channel.send("configuration", packed=text, slot=slot, successor=self._started.is_set())
        if self.draining:
            worker.channel.send("drain")
        self._tasks.start(self._follow(worker))
        return worker

    def _packed(self, configuration: Configuration) -> str:
        return packed(for_worker(configuration, self._port, self._folder, self.count))

    async def _follow(self, worker: WorkerProcess) -> None:
        """Handle all that a worker says, until its end."""
        try:
            while (message := await worker.channel.receive()) is not None:
                self._members.note_message(worker.name)
                self._handle(worker, message)
            try:
                async with asyncio.timeout(_END_S):
                    await worker.process.wait()
            except TimeoutError:  # it closed its end, cannot be reached any more, and does not exit either
                worker.kill()
                await worker.process.wait()
        finally:
            self._ended(worker)

    def _handle(self, worker: WorkerProcess, message: Message) -> None:
        kind = message["kind"]
        if self._hub.stops.handle(worker.name, kind, message) or self._followed_jobs.handle(worker.name, kind, message):
            return
        if kind == "calls":
            new = [LeftCall(*row) for row in message["new"]]
            report = CallsReport(new, message["gone"], message["live"], message["output"], message["in_engines"])
            self._hub.note_calls(worker.name, report)
        elif kind == "places":
            self._hub.note_places(worker.name, [PlaceReport(*row) for row in message["places"]], message["asks"])
        elif kind == "learned":
            self._hub.note_learned(worker.name, [LearnedFigures(*row) for row in message["rows"]])
        elif kind == "observations":
            self._hub.note_observations(message["seen"])
        elif kind == "tenants":
            self._hub.note_tenants(worker.name, [TenantUse(*row) for row in message["rows"]])
        elif kind == "tokens_charged":
            self._hub.note_tokens(worker.name, [TokensCharged(*row) for row in message["rows"]])
        elif kind == "answer":
            worker.answered(message)
        elif kind == "ready":
            self._tasks.start(self._became_ready(worker))
        elif kind == "failed":
            worker.failure = message["error"]
        elif kind == "beat":
            worker.gateway, worker.reaches_store = message["gateway"], message["reaches_store"]
            self._hub.note_calls(worker.name, CallsReport([], [], message["live"], {}, {}))
        elif kind == "tell" and message["text"] not in self._shown:
            self._shown.add(message["text"])
            write_stderr(f"hangup: {message['text']}")
        elif kind == "stopping":
            self._hub.note_stopping(message["term"], message["workers"])
        elif kind == "restart_engine":
            self._tasks.start(self._restart_engine(worker, message))
        elif kind == "draining" and not worker.leaving and not self.draining:
            worker.leaving = True  # somebody asked it to: another takes its place at once
            self._apply_changes()  # until that one is ready, the others accept from its socket
            self._tasks.start(self._replace(worker.slot))

    async def _restart_engine(self, worker: WorkerProcess, message: Message) -> None:
        leads = self._hub.stops.leads(worker.name, message)
        why = await self._engines.restart(message["backend"]) if leads else "another worker leads"
        worker.channel.send("engine_restarted", number=message["number"], why=why)

    async def _became_ready(self, worker: WorkerProcess) -> None:
        drained: set[str] = set()
        while drained != self.drained_backends:  # an operator may drain another meanwhile
            wanted = set(self.drained_backends)
            for backend in sorted(wanted ^ drained):
                method = "PUT" if backend in wanted else "DELETE"
                await worker.ask(method, f"/api/backends/{quote(backend, safe='')}/drain", _END_S)
            drained = wanted
        if worker.name in self._all:
            worker.ready = True
            self._hub.join(worker.name)
            self._followed_jobs.joined(worker.name)
            self._log.event("worker_started", worker=worker.slot, pid=worker.process.pid)
            self._apply_changes()

    def _ended(self, worker: WorkerProcess) -> None:
        worker.ended()
        self.retired_counters = metrics.merge([self.retired_counters, metrics.counters_of(worker.counted)])
        del self._all[worker.name]
        died = worker.process.returncode != 0
        last = self._hub.leave(worker.name, time.monotonic(), died=died)
        self._followed_jobs.left(worker.name, self._heir())
        if died and not worker.failure:
            code = worker.process.returncode
            calls = None if self._at_start.shared_state else len(last.calls)  # in the store: the leader says how many
            self._log.event("worker_died", worker=worker.slot, pid=worker.process.pid, code=code, live=last.live, calls=calls)
            self._hub.add_left_calls(worker.name, last.calls.values())
        elif worker.failure:
            self._log.event("worker_failed", worker=worker.slot, error=worker.failure)
        if self.by_slot[worker.slot] is worker and not worker.leaving:
            self.by_slot[worker.slot] = None
            if worker.ready and not self.draining:
                self.restarts += 1
            if worker.ready or worker.slot in self._restarting:
                self._tasks.start(self._replace(worker.slot, self._pauses[worker.slot].failed(time.monotonic())))
        self._apply_changes()

    async def _replace(self, slot: int, pause_s: float = 0.0) -> None:
        """Start another worker for a slot after a pause, and try again while the system cannot start one."""
        self._restarting.add(slot)
        await asyncio.sleep(pause_s)
        while not self.draining and self._lacks_worker(slot):
            try:
                await self._start(slot)
            except OSError as error:  # too many processes or files, or no memory
                self._log.event("worker_failed", worker=slot, error=f"cannot start a process: {error}")
                await asyncio.sleep(self._pauses[slot].failed(time.monotonic()))

    def _lacks_worker(self, slot: int) -> bool:
        """Return whether nobody has the slot, or only one that leaves. A roll may have filled it meanwhile."""
        worker = self.by_slot[slot]
        return worker is None or worker.leaving

    def _apply_changes(self) -> None:
        """Follow a change of who is there: who accepts from which socket, and who stops the calls of the dead."""
        self._changed.set()
        self._changed.clear()
        ready = self.serving_workers()
        if self.draining or not ready:
            return
        sockets: dict[str, set[int]] = {worker.name: set() for worker in ready}
        for slot in range(self.count):
            own = self.by_slot[slot]
            sockets[own.name if own is not None and own in ready else ready[slot % len(ready)].name].add(slot)
        for worker in ready:
            worker.listen_on(sockets[worker.name])
        self._hub.ask_leader_to_stop()

    def _heir(self) -> str | None:
        """Return who follows the jobs at providers of a worker that ended: the leader, or another one if that leaves."""
        leader = self._members.leader
        return leader if leader in self._all and not self._all[leader].leaving else next(self._others_than(""), None)

    def _others_than(self, name: str) -> Iterator[str]:
        """Return the workers that are ready, first those that stay, but this one."""
        ready = [worker for worker in self._all.values() if worker.ready and worker.name != name]
        return (worker.name for worker in sorted(ready, key=lambda worker: worker.leaving))

    def _tell_worker(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        worker = self._all.get(name)
        if worker is not None:
            worker.channel.send(kind, **fields)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            silent = self.silent_slots()
            self._hub.look(now)
            self._engines.end_unused(now)
            for worker in list(self._all.values()):
                silent_s = self._members.silent_s(worker.name)
                hangs_at_start = not worker.ready and now - worker.started_at > _START_S
                if hangs_at_start or silent_s >= self.configuration.settings.limits.worker_silence_s:
                    self._log.event("worker_hangs", worker=worker.slot, pid=worker.process.pid, silent_s=round(silent_s, 1))
                    worker.kill()
            if silent != self.silent_slots():
                self._apply_changes()
            answering = [worker.name for worker in self.answering_workers()]
            self._hub.pass_on_output(answering)
            self._hub.pass_on_calls(answering)

    # Signals

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self._tasks.start(self._roll()))

    def stop(self) -> None:
        """Drain all workers; when called again, cut it short."""
        SERVICE_MANAGER.stopping()
        (self._force if self._stop.is_set() else self._stop).set()
        self._changed.set()
        self._changed.clear()

    def reload(self) -> None:
        self._tasks.start(self._reload_in_turn())

    async def _reload_in_turn(self) -> None:
        await self._started.wait()
        async with self._rolling:
            with SERVICE_MANAGER.reloading():
                await self._reload()

    async def _drain(self) -> None:
        self.draining = True
        for worker in self._all.values():
            worker.channel.send("drain")
        force = self._tasks.start(self._force_later())
        limits = self.configuration.settings.limits
        self._deadline = Deadline(time.monotonic() + limits.drain_s + limits.exit_s)
        EXIT_WATCH.begin(Deadline(self._deadline.at + 2 * _LATE_S))
        await self._wait_until(lambda: not self._all, self._deadline.left(time.monotonic()) + _LATE_S)
        force.cancel()

    async def _force_later(self) -> None:
        await self._force.wait()
        for worker in self._all.values():
            worker.channel.send("cut_drain_short")

    async def _wait_until(self, condition: Callable[[], bool], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            pass

    async def _reload(self) -> None:
        """Send a new configuration to all workers, or keep the old one and say why."""
        try:
            new = await asyncio.to_thread(self._load)
            check_reload(self.configuration.settings, new.settings)
            await asyncio.to_thread(check_as_worker, with_fixed(self._at_start, new.settings))
            token = ports.admin_policy(new.settings, self._admin_host).token_sha256
        except HangupError as error:
            self._log.event("config_reload_failed", problems=str(error).splitlines())
            write_stderr(f"hangup: the configuration was not reloaded:\n{error}")
            return
        self._shown.clear()
        self.drained_backends -= undrained(self.drained_backends, self.configuration.settings, new.settings)
        self.configuration = new
        self._policy.token_sha256 = token
        self._engines.use(new.settings.backend, new.settings.limits.stop_s)
        for worker in self._all.values():
            worker.channel.send("configuration", packed=self._packed(new))

    async def _roll(self) -> None:
        """Replace the workers one after another. A new one is ready before its predecessor drains, so no call is refused."""
        await self._started.wait()
        async with self._rolling:
            self._log.event("workers_rolling", workers=self.count)
            for slot in range(self.count):
                if self.draining or not await self._replace_gently(slot):
                    return
            self._log.event("workers_rolled", workers=self.count)

    async def _replace_gently(self, slot: int) -> bool:
        new = await self._start(slot, replaces=False)
        while not new.ready:
            if new.name not in self._all:
                self._log.event("workers_roll_failed", worker=slot, error=new.failure)
                return False
            await self._changed.wait()
        old, self.by_slot[slot] = self.by_slot[slot], new  # whoever has it by now: its worker may have died meanwhile
        self._apply_changes()
        if old is not None and old.name in self._all:
            old.leaving = True
            old.listen_on(())
            await asyncio.sleep(SETTLE_S)
            old.channel.send("drain")
        return True

"""The server process: opens the ports around a `Gateway`, and handles signals, drain and reload."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from starlette.applications import Starlette

from hangup.config import ClientLimits, Settings
from hangup.config.load import Configuration
from hangup.core import reasons
from hangup.core.histogram import Histogram
from hangup.errors import HangupError
from hangup.gateway import ports
from hangup.gateway.admin.guard import Policy
from hangup.gateway.admin.server import AdminServer, make_app
from hangup.gateway.backends.loop_beats import BEAT_S, BEATS
from hangup.gateway.backends.pool import Dial
from hangup.gateway.client import sockets
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client.handshake import TlsListener
from hangup.gateway.closing import LEDGER_SHARE, PARTS_SHARE, READ_SHARE, ClosingStages
from hangup.gateway.discovery import Discovery
from hangup.gateway.divergence_monitor import DivergenceMonitor
from hangup.gateway.exit_watch import EXIT_WATCH
from hangup.gateway.fixed_settings import check_reload, needs_restart
from hangup.gateway.gateway import Gateway
from hangup.gateway.job_opener import JobOpener
from hangup.gateway.log import Log
from hangup.gateway.loop_watch import LoopWatch
from hangup.gateway.otlp import Exporter, configured_exporter
from hangup.gateway.registry import TURNED_AWAY_MAX
from hangup.gateway.service_manager import SERVICE_MANAGER
from hangup.gateway.stderr import write_stderr
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.tracing import Tracer
from hangup.gateway.view import AdminView
from hangup.tasks import TASKS

_FILES_RESERVED = 64 + TURNED_AWAY_MAX  # file descriptors for everything but calls and the admin port


class Listener(Protocol):
    def close(self) -> None: ...


class Server:
    """Runs a gateway until `stop` or a signal; `load` reads the configuration again for a reload."""

    _ending = False  # the process ends: no admin server is started again
    _shares_log = False  # other processes write to the same log
    _admin_host = ""  # the admin port listens on it until a restart; empty in a worker, which has no admin port

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[], Configuration],
        dials: Mapping[str, Dial] = MappingProxyType({}),
    ) -> None:
        self.configuration = configuration
        self._at_start = configuration.settings
        self._dials = dials
        self._load = load
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._lag = Histogram((0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1))
        self._admin: AdminServer | None = None
        self._reload_tasks: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()  # reloads run in the order of their requests

    async def run(self, announce: Callable[[str, str], None]) -> None:
        settings = self.configuration.settings
        loop = asyncio.get_running_loop()
        self._policy = policy = ports.admin_policy(settings)
        data_sock, admin_sock = self._open_ports(settings)
        tls = ports.server_tls(settings)
        self._log = open_log(settings, shared=self._shares_log)
        TASKS.on_failure = self._log.task_failed
        loop.set_exception_handler(_report_loop_exception)
        self._stalls = LoopWatch(self._log.event, settings.limits.loop_stall_s)
        TASKS.stall_s = settings.limits.thread_stall_s
        TASKS.thread("loop watch", self._stalls.run)
        store = self._open_ledger(settings)
        self._tracer = tracer = _tracer(settings, self._log)
        self._discovery = Discovery(self._log)
        self.gateway = gateway = self._make_gateway(await self._with_found_backends(settings), loop, store, tracer)
        gateway.intake.connections_allowed = _connections_allowed(settings.limits)
        if gateway.intake.connections_allowed < settings.limits.connections_max:
            self._log.event("connections_max_lowered", connections_max=gateway.intake.connections_allowed)
        self._job_opener = JobOpener(gateway, self._jobs_password)
        await self._job_opener.open(settings, data_sock.getsockname()[1])
        gateway.intake.tls = tls
        listener = await self._start_listening(data_sock)
        monitor = DivergenceMonitor(
            settings=lambda: gateway.settings,
            backends=gateway.backends,
            registry=gateway.registry,
            placement=gateway.placement,
            reaper=gateway.stopping.reaper,
            accounting=gateway.accounting,
            log=self._log,
        )
        monitor_task = TASKS.keep("monitor", monitor.run)
        view = AdminView(gateway.ports, gateway.intake, self._lag, monitor, store, self._stalls, lambda: gateway.limits)
        admin_task = TASKS.keep("admin", partial(self._serve_admin, view, admin_sock, policy, settings.limits))
        lag_task = TASKS.keep("loop lag", self._watch_lag)
        follow_names = partial(self._discovery.follow, gateway.backends, self._use_found_backends)
        names_task = TASKS.keep("discovery", follow_names)
        self._catch_signals(loop)
        _tune_collector()
        announce(ports.url_of(data_sock.getsockname(), tls is not None), ports.url_of(admin_sock.getsockname(), False))
        self._log.begin()
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            listener.close()
            gateway.end_all(reasons.DRAINED)
            cancelled = [monitor_task, names_task, *self._reload_tasks]
            for task in cancelled:
                task.cancel()
            await self._close(admin_task, lag_task, cancelled, monitor, store)

    async def _close(
        self,
        admin_task: asyncio.Task[None],
        lag_task: asyncio.Task[None],
        cancelled: list[asyncio.Task[None]],
        monitor: DivergenceMonitor,
        store: LedgerStore,
    ) -> None:
        """End within `exit_s`: each stage takes its part of what is left, so that none leaves nothing to those after it."""
        gateway, tracer = self.gateway, self._tracer
        closing = ClosingStages(gateway.limits.exit_s, self._log)
        EXIT_WATCH.begin(closing.deadline)
        await closing.stage(clients=self._let_clients_read(closing.part(READ_SHARE)))
        within_s = closing.part(PARTS_SHARE)
        await closing.stage(
            jobs=self._close_jobs(within_s), gateway=gateway.close(within_s), names=self._discovery.close(), within_s=within_s
        )
        self._ending = True
        self._stop_admin()
        lag_task.cancel()
        await closing.stage(tasks=asyncio.gather(admin_task, lag_task, *cancelled, monitor.close(), return_exceptions=True))
        last_s = closing.part(LEDGER_SHARE)
        await closing.stage(
            ledger=asyncio.to_thread(store.close, last_s),
            traces=asyncio.to_thread(tracer.close, last_s) if tracer is not None else None,
        )
        self._stalls.close()
        self._log.close(closing.part(1.0))

    async def _close_jobs(self, within_s: float) -> None:
        began = time.monotonic()
        await self._job_opener.close()
        if self.gateway.jobs.api is not None:
            await self.gateway.jobs.api.registry.close(max(0.0, within_s - (time.monotonic() - began)))

    async def _serve_admin(self, view: AdminView, sock: socket.socket, policy: Policy, limits: ClientLimits) -> None:
        if self._ending:
            return
        self._admin = AdminServer(
            self._admin_app(view, policy), sock.dup(), limits
        )  # a copy, because uvicorn closes its socket
        await self._admin.run_until_stopped()
        if not self._admin.should_exit:  # nobody called `stop`
            raise RuntimeError("the admin server ended by itself")

    def _admin_app(self, view: AdminView, policy: Policy) -> Starlette:
        return make_app(view, policy)

    def _make_gateway(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, store: LedgerStore, tracer: Tracer | None
    ) -> Gateway:
        return Gateway(settings, loop, self._log, self._dials, store, tracer)

    def _stop_admin(self) -> None:
        if self._admin is not None:
            self._admin.stop()

    def _open_ports(self, settings: Settings) -> tuple[socket.socket, socket.socket]:
        """Return the listening sockets of the data port and the admin port."""
        self._admin_host = settings.admin_host
        data_sock = ports.listen("port", settings.host, settings.port, settings)
        return data_sock, ports.listen("admin_port", settings.admin_host, settings.admin_port, settings)

    async def _start_listening(self, sock: socket.socket) -> Listener:
        return await self._accept_from(sock)

    async def _accept_from(self, sock: socket.socket) -> asyncio.Server | TlsListener:
        """Accept clients from a listening socket, which the result owns."""
        gateway, loop = self.gateway, self.gateway.loop
        if gateway.intake.tls is not None:
            return TlsListener(gateway.intake, loop, sock)
        return await loop.create_server(lambda: ClientConnection(gateway.intake, loop), sock=sock, backlog=sockets.BACKLOG)

    def _open_ledger(self, settings: Settings) -> LedgerStore:
        return LedgerStore(
            settings.ledger,
            flush_s=settings.limits.ledger_flush_s,
            days=settings.ledger_days,
            accounts_max=settings.limits.ledger_accounts_max,
            bytes_max=settings.limits.ledger_bytes_max,
            wal_bytes_max=settings.limits.wal_bytes_max,
            password=self._ledger_password,
            log_event=self._log.event,
        )

    # The present passwords: a reload may have read another one since the last connection was opened.

    def _jobs_password(self) -> str:
        return self.configuration.settings.jobs_password.reveal()

    def _ledger_password(self) -> str:
        return self.configuration.settings.ledger_password.reveal()

    def stop(self) -> None:
        """Start the drain; when called again, cut it short."""
        SERVICE_MANAGER.stopping()
        (self._force if self._stop.is_set() else self._stop).set()

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    async def _drain(self) -> None:
        gateway, limits = self.gateway, self.gateway.limits
        self._job_opener.give_up()
        live = len(gateway.registry.live)
        self._log.event("drain_started", live=live, drain_s=limits.drain_s)
        gateway.start_drain()
        if live and not self._log.for_people:
            self._tell(
                f"draining: {live} live call{'s' * (live != 1)} may finish within {limits.drain_s:g} s; "
                "a second Ctrl-C or SIGTERM ends them now"
            )
        waits = [TASKS.start("drain", gateway.registry.idle.wait()), TASKS.start("drain", self._force.wait())]
        try:
            await asyncio.wait(waits, timeout=limits.drain_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if gateway.registry.live:
            self._log.event("drain_cut_short", ended=len(gateway.registry.live), forced=self._force.is_set())

    async def _let_clients_read(self, within_s: float) -> None:
        """Let clients read the last bytes that were sent to them, for at most `linger_s`, as with refused clients."""
        deadline = asyncio.get_running_loop().time() + min(self.gateway.limits.linger_s, within_s)
        intake, loop = self.gateway.intake, asyncio.get_running_loop()
        while intake.open_connections and loop.time() < deadline and not self._force.is_set():
            intake.close_after_answers()
            await asyncio.sleep(0.01)
        for connection in (*intake.open_connections, *intake.turned_away):
            connection.transport.abort()

    def reload(self) -> None:
        """Read the configuration again, and apply it."""
        task = TASKS.start("reload", self._reload_in_turn())
        self._reload_tasks.add(task)
        task.add_done_callback(self._reload_tasks.discard)

    async def _reload_in_turn(self) -> None:
        async with self._reloading:
            with SERVICE_MANAGER.reloading():
                await self._reload()

    async def _reload(self) -> None:
        """Apply the new configuration as a whole, or keep the old one as a whole and log why."""
        old = self.configuration.settings
        try:
            new = await asyncio.to_thread(self._load)
            check_reload(old, new.settings)
            tls = self.gateway.intake.tls
            tls = ports.server_tls(new.settings) if tls is not None and new.settings.tls_cert else tls
            token = ports.admin_policy(new.settings, self._admin_host).token_sha256
            exporter = self._exporter(new.settings)
            whole = self.gateway.configure(await self._with_found_backends(new.settings))
        except HangupError as error:
            await self._with_found_backends(old)
            self._log.event("config_reload_failed", problems=str(error).splitlines())
            self._tell(f"the configuration was not reloaded:\n{error}")
            return
        except Exception as error:  # a bug of ours must not look like a success
            await self._with_found_backends(old)
            self._log.event("config_reload_failed", problems=[f"{type(error).__name__}: {error}"])
            self._log.fault(error)
            self._tell(f"the configuration was not reloaded: {type(error).__name__}: {error}")
            return
        kept = needs_restart(self._at_start, new.settings)
        kept += ["otlp_endpoint"] if (exporter is None) != (self._tracer is None) else []
        kept += ["tls_cert"] if bool(new.settings.tls_cert) != (tls is not None) else []
        self.configuration = new
        self._policy.token_sha256 = token
        if self._tracer is not None and exporter is not None:
            self._tracer.exporter = exporter  # address and headers at once: a key goes to the collector that it is for
        self._discovery.settled()
        self.gateway.intake.tls = tls  # read from the files again, so a reload picks up a renewed certificate
        self.gateway.intake.connections_allowed = _connections_allowed(new.settings.limits)
        self._stalls.stall_s, TASKS.stall_s = new.settings.limits.loop_stall_s, new.settings.limits.thread_stall_s
        tenants = [tenant.name for tenant in new.settings.tenant]
        backends = list(self.gateway.backends.by_name)
        self._log.event("config_reloaded", backends=backends, tenants=tenants, needs_restart=kept, whole=whole)
        note = f" (a restart is needed for: {', '.join(kept)})" if kept else ""
        note += "" if whole else ", but part of it failed because of an internal error, which is in the log: reload again"
        self._tell(f"configuration reloaded{note}")

    def _exporter(self, settings: Settings) -> Exporter | None:
        """Return the exporter of traces for a reload. A collector that only variables name cannot make a reload fail if there
        were no traces before."""
        try:
            return configured_exporter(settings, os.environ, self._at_start.limits.trace_send_s)
        except HangupError:
            if settings.otlp_endpoint or self._tracer is not None:
                raise
            return None

    def _tell(self, text: str) -> None:
        """Tell whoever started this process."""
        write_stderr(f"hangup: {text}")

    async def _with_found_backends(self, settings: Settings) -> Settings:
        """Return the settings with a backend for each address behind a dns+ name."""
        await self._discovery.configure(settings.backend, settings.limits, settings.dns_server)
        return self._expanded(settings)

    def _expanded(self, settings: Settings) -> Settings:
        return dataclasses.replace(settings, backend=self._discovery.expanded())

    async def _use_found_backends(self) -> None:
        """Use the backends that DNS lists now."""
        async with self._reloading:
            self.gateway.configure(self._expanded(self.configuration.settings))

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                before = loop.time()
                self._stalls.beat()
                BEATS.beat()
                await asyncio.sleep(BEAT_S)
                self._lag.observe(max(0.0, loop.time() - before - BEAT_S))
        finally:
            BEATS.stop()


def _report_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Count an exception from a callback or an unawaited task, then report it as asyncio does by default."""
    error = context.get("exception")
    if isinstance(error, Exception):
        TASKS.failed("callback", error)
    loop.default_exception_handler(context)


def open_log(settings: Settings, *, shared: bool = False) -> Log:
    try:
        limits = settings.limits
        events_max = limits.history_events_max
        return Log(settings.log, limits.log_lines_max, shared=shared, format=settings.log_format, events_max=events_max)
    except OSError as error:
        raise HangupError(f"cannot write the log to {settings.log}: {error.strerror or error}") from None


def _tracer(settings: Settings, log: Log) -> Tracer | None:
    """Return the tracer. Without `otlp_endpoint`, OpenTelemetry's variables apply. They cannot keep hangup from starting:
    whoever set them may have had other programs in mind."""
    limits = settings.limits
    try:
        exporter = configured_exporter(settings, os.environ, limits.trace_send_s)
    except HangupError as error:
        if settings.otlp_endpoint:
            raise
        log.event("traces_disabled", error=str(error))
        return None
    if exporter is None:
        return None
    return Tracer(
        exporter,
        calls_max=limits.traced_calls_max,
        release_s=limits.trace_release_s,
        close_s=exporter.timeout_s + 1.0,  # enough for one last batch
        share=limits.trace_share if exporter.share is None else exporter.share,
        slow_s=limits.trace_slow_s,
    )


def _connections_allowed(limits: ClientLimits) -> int:
    """Raise the limit of file descriptors as far as possible, and return how many client connections it allows. Each needs a
    second descriptor for its engine."""
    wanted, reserved = limits.connections_max, _FILES_RESERVED + limits.admin_connections_max
    needed = 2 * wanted + reserved
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(needed, hard), hard):
        with contextlib.suppress(ValueError, OSError, OverflowError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            break
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files >= needed else max(1, (files - reserved) // 2)


def _tune_collector() -> None:
    """Make the garbage collector run rarely: objects from the start stay for good, and calls leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

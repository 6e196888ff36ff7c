"""`hangup serve`: runs the gateway."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvloop

from hangup import __version__
from hangup.cli.settings import add_flags, configuration
from hangup.config import BackendSettings
from hangup.config.load import Configuration
from hangup.config.secrets import hidden_variables
from hangup.engine.options import EngineOptions
from hangup.gateway.config_watch import reloading_on_change
from hangup.gateway.exit_watch import EXIT_WATCH
from hangup.gateway.hosts.sharable import check_for_sharing
from hangup.gateway.reaper import core_dumps
from hangup.gateway.server import Server
from hangup.gateway.service_manager import SERVICE_MANAGER
from hangup.gateway.stderr import write_stderr
from hangup.gateway.workers.settings import worker_count
from hangup.terminal import is_coloured, paint

_EMBEDDED = "embedded"  # the name of the embedded engine's backend
_EXAMPLES = """\
examples:
  hangup serve
      the gateway on :8080 with its embedded engine and a small model, to try it
  hangup serve --upstream http://127.0.0.1:8000
      in front of vLLM, SGLang, llama-server, …
  hangup serve --upstream http://10.0.0.1:8000 --upstream http://10.0.0.2:8000 --output-tokens-max 8192
      two backends, and at most 8192 tokens per answer
  hangup serve --spawn "llama-server -m model.gguf --port {port}"
      start an engine, monitor it, and restart it when it is stuck
  hangup serve --upstream http://127.0.0.1:8000 --workers auto
      one process per core on the same port; see `hangup docs scale`
  hangup serve --config hangup.toml
      all settings from a file; SIGHUP reloads it
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        description="Runs the gateway until SIGTERM or Ctrl-C. The first signal drains it; a second one forces the exit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    core_dumps.forbid()
    EXIT_WATCH.use()
    SERVICE_MANAGER.connect(os.environ)
    config = configuration(arguments)
    # asyncio.Runner cancels any task that is left.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_watched(config, lambda: configuration(arguments)))
    return 0


async def _serve_watched(config: Configuration, load: Callable[[], Configuration]) -> None:
    with SERVICE_MANAGER.watched():
        await _serve(config, load)


async def _serve(config: Configuration, load: Callable[[], Configuration]) -> None:
    if config.settings.workers != 1 and (count := worker_count(config.settings)) > 1:
        await _serve_with_workers(config, load, count)
        return
    if config.settings.shared_state:
        from hangup.gateway.hosts.server import SharingServer  # noqa: PLC0415 (its client is an extra)

        sharing = SharingServer(config, load)
        with reloading_on_change(sharing):
            await sharing.run(_announce(config, _engines(config)))
        return
    if config.settings.backend:
        server = Server(config, load)
        with reloading_on_change(server):
            await server.run(_announce(config, _engines(config)))
        return
    from hangup.engine.serving.server import embed  # noqa: PLC0415 (numpy is only for the built-in engine)

    options = _engine_options(config)
    engine = embed(options, config.settings.limits)
    backend = BackendSettings(url="http://embedded", name=_EMBEDDED, engine="hangup", slots=options.slots)
    model = engine.server.runner.model.name
    try:
        dials = {_EMBEDDED: engine.dial}
        server = Server(_with_engine(config, backend), lambda: _with_engine(load(), backend), dials)
        with reloading_on_change(server):
            await server.run(_announce(config, f"the embedded engine with {model} (no --upstream given)"))
    finally:
        await engine.close()


async def _serve_with_workers(config: Configuration, load: Callable[[], Configuration], count: int) -> None:
    from hangup.gateway.workers.supervisor import Supervisor  # noqa: PLC0415 (a process alone does not need it)

    if config.settings.shared_state:
        check_for_sharing(config.settings.backend)
    engines, embedded = _engines(config), ""
    with contextlib.ExitStack() as stack:
        if not config.settings.backend:
            backend = _engine_process(_engine_options(config), stack.enter_context(_reserved_port()))
            engines, embedded = "the embedded engine in a process of its own (no --upstream given)", _EMBEDDED
            load = partial(_load_with_engine, load, backend)
            config = _with_engine(config, backend)
        supervisor = Supervisor(config, load, count, embedded)
        stack.enter_context(reloading_on_change(supervisor))
        await supervisor.run(_announce(config, f"{engines} with {count} workers"))


def _load_with_engine(load: Callable[[], Configuration], backend: BackendSettings) -> Configuration:
    return _with_engine(load(), backend)


def _with_engine(loaded: Configuration, backend: BackendSettings) -> Configuration:
    """Return the configuration with this backend if it has none."""
    if loaded.settings.backend:
        return loaded
    if backend.spawn:
        backend = dataclasses.replace(backend, hidden_variables=hidden_variables(loaded.settings, backend, os.environ))
    return dataclasses.replace(loaded, settings=dataclasses.replace(loaded.settings, backend=(backend,)))


def _engine_options(config: Configuration) -> EngineOptions:
    return EngineOptions(slots=config.settings.slots) if config.settings.slots else EngineOptions()


def _engine_process(options: EngineOptions, port: int) -> BackendSettings:
    """Return the backend that runs the embedded engine in a process of its own, because workers cannot share one of theirs."""
    command = [sys.executable, "-m", "hangup", "engine", "--host", "127.0.0.1", "--port", "{port}", "--slots"]
    spawn = shlex.join([*command, str(options.slots)])
    return BackendSettings(url=f"http://127.0.0.1:{port}", name=_EMBEDDED, engine="hangup", slots=options.slots, spawn=spawn)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Return a port on which the engine can listen, also after a restart, and that nobody else is given meanwhile."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _engines(config: Configuration) -> str:
    return ", ".join(backend.url for backend in config.settings.backend)


def _announce(config: Configuration, engines: str) -> Callable[[str, str], None]:
    """Return what tells, once the ports are open, where to find what; at a terminal in a few lines."""

    def announce(data_url: str, admin_url: str) -> None:
        write_stderr(f"hangup: serving {data_url} (admin {admin_url}) in front of {engines}")

    def announce_to_people(data_url: str, admin_url: str) -> None:
        coloured = is_coloured(sys.stderr)
        log = config.settings.log
        rows = [
            ("clients", f"{data_url}/v1"),
            ("dashboard", admin_url),
            ("engine", engines),
            ("log", "off (--log none)" if log == "none" else log if log != "-" else ""),
            ("stop", "Ctrl-C drains; a second Ctrl-C ends live calls"),
        ]
        lines = [paint(f"hangup {__version__} is serving", "bold", coloured)]
        lines += [f"  {paint(f'{name:<9}', 'dim', coloured)}  {value}" for name, value in rows if value]
        write_stderr("\n".join(lines))

    def announce_everywhere(data_url: str, admin_url: str) -> None:
        (announce_to_people if sys.stderr.isatty() else announce)(data_url, admin_url)
        SERVICE_MANAGER.ready(f"serving {data_url} (admin {admin_url}) in front of {engines}")

    return announce_everywhere

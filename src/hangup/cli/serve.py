"""`hangup serve`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from hangup.app.server import Server
from hangup.cli.settings import add_flags, configuration
from hangup.config import BackendSettings, Configuration
from hangup.standin.engine import Behaviour
from hangup.standin.server import start as start_standin

_EXAMPLES = """\
examples:
  hangup serve
      the gateway on :8080 with a built-in stand-in engine, to look around
  hangup serve --upstream http://127.0.0.1:8000
      in front of vLLM, SGLang, llama-server, …
  hangup serve --upstream http://10.0.0.1:8000 --upstream http://10.0.0.2:8000 --output-tokens-max 8192
      two backends, and no answer longer than 8192 tokens
  hangup serve --spawn "llama-server -m model.gguf --port {port}"
      an engine of its own: started, watched, and restarted when it is stuck
  hangup serve --config hangup.toml
      everything from a file; SIGHUP reads it again
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Runs the gateway until SIGTERM or Ctrl-C; the first drains, the second forces.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    made = configuration(arguments)
    # uvloop is the loop; asyncio.Runner sees to it that nothing is left running.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(made, lambda: configuration(arguments)))
    return 0


async def _serve(made: Configuration, load: Callable[[], Configuration]) -> None:
    def announce(data_url: str, admin_url: str) -> None:
        names = [b.url for b in made.settings.backend] or ["a built-in stand-in engine (no --upstream was given)"]
        print(f"hangup: serving {data_url} (admin {admin_url}) in front of {', '.join(names)}", file=sys.stderr, flush=True)

    if made.settings.backend:
        await Server(made, load).run(announce)
        return
    standin = await start_standin(Behaviour())
    backend = BackendSettings(url=f"http://127.0.0.1:{standin.port}", name="standin", engine="standin")

    def with_standin(loaded: Configuration) -> Configuration:
        if loaded.settings.backend:
            return loaded
        return dataclasses.replace(loaded, settings=dataclasses.replace(loaded.settings, backend=(backend,)))

    try:
        await Server(with_standin(made), lambda: with_standin(load())).run(announce)
    finally:
        await standin.close()

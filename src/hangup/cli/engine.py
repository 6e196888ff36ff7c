"""`hangup engine`: runs the built-in engine by itself."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import uvloop

from hangup.cli.options import add_options, read_options
from hangup.cli.wait_for_signal import until_stopped
from hangup.engine.options import EngineOptions

_EXAMPLES = """\
examples:
  hangup engine --port 8000 --slots 8 --spec mtp
      the built-in model on the CPU, with speculative decoding by its MTP head
  hangup engine --model ./Llama-3.2-1B-Instruct --slots 32
      a Llama model from a directory, on the GPU if there is one (pip install 'hangup[torch]')
  curl -N localhost:8000/v1/completions -d '{"prompt": "ROMEO:", "max_tokens": 100, "stream": true}'

while it runs:
  GET  /slots            the state of each slot
  GET  /metrics          counters: calls, tokens, cancellations
  POST /v1/cancel/ID     cancel a call by its x-request-id
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "engine",
        description="Runs a small real engine that drops cancelled calls before the next forward pass (`hangup docs engine`).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, EngineOptions)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    options = read_options(arguments, EngineOptions)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, arguments.host, arguments.port))
    return 0


async def _serve(options: EngineOptions, host: str, port: int) -> None:
    from hangup.engine.serving.server import start  # noqa: PLC0415 (other commands need not load numpy)

    serving = await start(options, host, port)
    model = serving.server.runner.model
    print(
        f"hangup: engine on http://{host}:{serving.port}: {model.name}, {options.slots} slots, spec {options.spec}",
        file=sys.stderr,
        flush=True,
    )
    await until_stopped()
    await serving.close()

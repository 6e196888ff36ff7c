"""`hangup standin`: runs the fake engine by itself, to test a gateway against it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import uvloop

from hangup.cli.options import add_options, read_options
from hangup.cli.wait_for_signal import until_stopped
from hangup.errors import ConfigError
from hangup.fake_engine.engine import Behaviour
from hangup.fake_engine.profiles import PROFILES
from hangup.fake_engine.server import start

_EXAMPLES = """\
examples:
  hangup standin --port 8000 --slots 8 --token-s 0.02
  hangup standin --port 8000 --deaf                     keeps computing after its client disconnects
  hangup standin --like vllm --slots 4096 --prefill-s 1   thousands of slots, a constant first-token time of 1 s
  hangup standin --like openai --slots 100 --queue 0 --full-status 429 --retry-after-s 1    a hosted API with a rate limit

control, while it runs:
  GET  /standin/stats     exact counts of the work so far
  POST /standin/behave    change any flag: {"deaf": true}
  POST /standin/forget_peaks   reset running_peak and waiting_peak
  GET  /standin/seen      the requests received
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "standin",
        description="Runs a fake engine: no model, but slots, a queue, prefill, a fixed speed and faults on demand.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, Behaviour)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    behaviour = read_options(arguments, Behaviour)
    if behaviour.like not in PROFILES:
        raise ConfigError([f"--like: expected one of {', '.join(filter(None, PROFILES))}, got {behaviour.like!r}"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(behaviour, arguments.host, arguments.port))
    return 0


async def _serve(behaviour: Behaviour, host: str, port: int) -> None:
    running = await start(behaviour, host, port)
    print(f"hangup: fake engine on http://{host}:{running.port}", file=sys.stderr, flush=True)
    await until_stopped()
    await running.close()

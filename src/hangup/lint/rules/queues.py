"""Rules about queues in front of an engine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Module, Site
from hangup.lint.vocabulary import FRAMEWORKS, Inference

_QUEUES = frozenset(
    {"asyncio.Queue", "asyncio.PriorityQueue", "queue.Queue", "queue.PriorityQueue", "janus.Queue", "queue.SimpleQueue"}
)
_WAITING = re.compile(r"request|job|pending|wait|input|incoming|prompt|infer|batch|work|task", re.I)
_LEAVING = re.compile(r"output|result|response|token|chunk|out_|event|log|stream|message|notif|update|finish|done", re.I)


@rule(
    "HU013",
    "unbounded-queue",
    Severity.WARNING,
    summary="An unbounded queue in front of an engine.",
    why="""When requests arrive faster than the engine can answer, the queue grows without bound: clients time out before
    their request starts, and the engine computes for nobody. A bounded queue refuses early instead.""",
    hint="give it a `maxsize` and answer 503 when it is full, or use `hangup.Gate`",
    bad="""
        import asyncio

        request_queue = asyncio.Queue()

        async def worker(engine):
            while True:
                prompt, done = await request_queue.get()
                done.set_result(await engine.generate(prompt))
        """,
    good="""
        import asyncio

        request_queue = asyncio.Queue(maxsize=32)

        async def worker(engine):
            while True:
                prompt, done = await request_queue.get()
                done.set_result(await engine.generate(prompt))
        """,
)
def unbounded_queue(module: Module) -> Iterator[Hit]:
    if not Inference.of(module) and not module.packages & FRAMEWORKS:
        return
    for site in module.calls():
        if site.name in _QUEUES and not _bounded(site):
            name = _assigned_name(site)
            if _WAITING.search(name) and not _LEAVING.search(name):
                yield site.node, f"`{name}` may grow without bound while the engine is busy"


def _bounded(site: Site) -> bool:
    size = site.node.args[0] if site.node.args else site.keyword("maxsize")
    return size is not None and not (isinstance(size, ast.Constant) and size.value == 0)


def _assigned_name(site: Site) -> str:
    """Return the name that the queue is assigned to."""
    statement = site.statement
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and statement.value is site.node:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is site.node:
        target = statement.target
    if isinstance(target, ast.Name):
        return target.id
    return target.attr if isinstance(target, ast.Attribute) else ""

"""What several rules ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangup.lint.facts import Spawn
from hangup.lint.names import Key
from hangup.lint.project import Project
from hangup.lint.runs import Runs

_STARTUP = re.compile(r"startup|lifespan|^main$|^__init__$|on_event|initiali[sz]e|^start$|^start_\w*worker|warm", re.I)


_UPKEEP = re.compile(
    r"sync|index|ingest|document|(^|_)docs?(_|$)|embed|upload|import|train|migrat|backup|clean|memor|title|telemetry|(^|_)log|metric"
    r"|record|persist|save|store|cache|warm|evaluat|score|notify|email|webhook|health",
    re.I,
)


def is_upkeep(target: str) -> bool:
    """Return whether a job is meant to outlive its request by its name: it stores, indexes or records something."""
    return _UPKEEP.search(target.rpartition(".")[2]) is not None


def chain(path: str, name: str, runs: Runs) -> str:
    """Return where the inference is, if it is not in the reported call itself, and if that is certain.

    Where a branch decides, or several classes have the method, the reported call runs inference, but not surely this one.
    """
    if runs.source == name or not runs.sure:
        return ""
    where = f"line {runs.line}" if runs.path == path else f"{runs.path}:{runs.line}"
    return f" (`{runs.source}`, {where})"


def name_of(spawn: Spawn, runs: Runs) -> str:
    """Return the name of what is started; a lambda has none, so what it calls stands for it."""
    return runs.source if spawn.target.startswith("#") else spawn.target


def is_startup(project: Project, key: Key) -> bool:
    """Return whether a function runs once for the process, not for a request."""
    return key[1] == 0 or (_STARTUP.search(project.function(key).name) is not None and not project.handler(key))


def with_near(project: Project, key: Key) -> Iterator[Key]:
    """Yield a function, the functions directly inside it, and those around it."""
    yield key
    yield from project.names.inside(key)
    while (outer := project.function(key).outer) > 0:
        key = (key[0], outer)
        yield key


def streams_here(project: Project, key: Key) -> bool:
    """Return whether a function yields what its producer makes, itself or in a function inside or around it."""
    function = project.function(key)
    if function.yields or function.sends_stream or any("streamer" in name.lower() for name in function.assigned):
        return True
    return any(project.function(near).yields for near in with_near(project, key))


def runs_inference(project: Project, key: Key, index: int) -> bool:
    """Return whether what a function gives away is inference, as far as is known."""
    runs = project.by_spawn.get((*key, index))
    return runs is not None and not runs.forwards

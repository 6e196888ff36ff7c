"""`hangup init`: writes a configuration file for the engines that run here, or takes over the settings of LiteLLM."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hangup.cli.doctor import ask_what_it_is
from hangup.cli.litellm import taken_over
from hangup.config import BackendSettings, LimitSettings
from hangup.config.addresses import url_problem
from hangup.config.load import load
from hangup.config.toml_text import written
from hangup.errors import HangupError
from hangup.gateway.backends.backend import Backend

# Where engines listen unless they are told otherwise.
KNOWN_PORTS = {
    8000: "vLLM, TensorRT-LLM, transformers serve",
    8080: "llama-server",
    30000: "SGLang",
    11434: "Ollama",
    3000: "TGI",
    23333: "LMDeploy",
    1234: "LM Studio",
}
_MODELS_SHOWN = 5
_PORTS_OF_OURS = (8080, 8090, 8100, 8110)  # the data port is the first that no engine uses; the admin port is one higher
_USUAL = (
    *("host", "port", "admin_port", "slots", "log", "ledger", "jobs"),
    *("output_tokens_max", "total_s", "first_token_s", "gap_s", "queue_s", "drain_s"),
)
_NOTES = """\
Written by `hangup init`. Lines that begin with # and a name are defaults, shown for convenience;
`hangup config example` prints all settings.

Check:  hangup config check {file}
Start:  hangup serve --config {file}"""
_EXAMPLES = """\
examples:
  hangup init
      asks the usual ports of 127.0.0.1 for engines, and writes hangup.toml
  hangup init --upstream http://10.0.0.1:8000 --upstream http://10.0.0.2:8000
      for these engines
  hangup init --from-litellm config.yaml
      takes over the models of LiteLLM's proxy; what has no counterpart is listed in comments
"""


@dataclass(slots=True)
class Draft:
    """What goes into the file."""

    settings: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    tables: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # name, comment, values
    notes: list[str] = field(default_factory=list)  # for the head of the file and for whoever ran the command


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "init",
        description="Writes a configuration file. Asks engines with GET requests only.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", nargs="?", default="hangup.toml", metavar="FILE", help="file to write; - for stdout (default: hangup.toml)"
    )
    parser.add_argument("--upstream", action="append", metavar="URL", help="URL of an engine; repeat it for several")
    parser.add_argument(
        "--from-litellm", type=Path, metavar="FILE", help="take over the config.yaml of LiteLLM's proxy (needs hangup[litellm])"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    file = arguments.file
    if file != "-" and Path(file).exists() and not arguments.force:
        raise HangupError(f"{file} exists already\n  hint: --force replaces it; - writes to stdout")
    if arguments.from_litellm and arguments.upstream:
        raise HangupError("give --upstream or --from-litellm, not both: LiteLLM's file names the upstreams")
    if arguments.from_litellm:
        draft = Draft(*taken_over(arguments.from_litellm, os.environ))
    else:
        draft = asyncio.run(_for_engines(arguments.upstream or []))
    notes = "\n".join([_NOTES.format(file="hangup.toml" if file == "-" else file), *(f"\n{note}" for note in draft.notes)])
    text = written(notes, draft.settings, draft.limits, draft.tables, _USUAL)
    if file == "-":
        print(text, end="")
    else:
        _write(Path(file), text)
        load(Path(file))  # a file that we wrote must be valid
    for note in draft.notes:
        print(f"hangup: {note}", file=sys.stderr)
    if file != "-":
        print(f"hangup: wrote {file}; next: hangup config check {file}", file=sys.stderr)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HangupError(f"cannot write {path}: {error.strerror or error}") from None


async def _for_engines(upstreams: list[str]) -> Draft:
    for url in upstreams:
        if problem := url_problem(url):
            raise HangupError(f"--upstream: {problem}")
    urls = upstreams or [f"http://127.0.0.1:{port}" for port in KNOWN_PORTS]
    found = await asyncio.gather(*(_examined(url) for url in urls))
    draft = Draft()
    for url, (table, note) in zip(urls, found, strict=True):
        if table is not None:
            draft.tables.append(("backend", note, table))
            draft.notes.append(f"{url}: {note}")
        elif upstreams:
            draft.tables.append(("backend", f"It was not recognised: {note}", {"url": url}))
            draft.notes.append(f"{url} was not recognised: {note}")
    if not draft.tables:
        ports = ", ".join(f"{port} ({name})" for port, name in KNOWN_PORTS.items())
        draft.notes.append(
            f"No engine answered on 127.0.0.1 at {ports}. Without a [[backend]], hangup serves a small model of its own."
            " Start an engine and run this again, or pass --upstream URL."
        )
    taken = {urlsplit(table["url"]).port for _, _, table in draft.tables if urlsplit(table["url"]).hostname == "127.0.0.1"}
    ours = next((port for port in _PORTS_OF_OURS if not {port, port + 1} & taken), 0)
    if ours != _PORTS_OF_OURS[0]:
        draft.settings |= {"port": ours, "admin_port": ours + 1}
        draft.notes.append(f"An engine has the port {_PORTS_OF_OURS[0]}, so hangup listens on {ours}.")
    return draft


async def _examined(url: str) -> tuple[dict[str, Any] | None, str]:
    """Return the values of a [[backend]] and what the engine is; or None, and why it is no engine."""
    settings = BackendSettings(url=url)
    limits = LimitSettings(connect_s=0.5) if "127.0.0.1" in url else LimitSettings()
    backend = Backend(settings, limits, asyncio.get_running_loop())
    try:
        fault = await ask_what_it_is(backend)
    finally:
        backend.pool.close()
    if fault is not None:
        return None, fault
    names = [row["id"] for row in backend.model_rows or []]
    more = f" and {len(names) - _MODELS_SHOWN} more" if len(names) > _MODELS_SHOWN else ""
    models = f" with {', '.join(names[:_MODELS_SHOWN])}{more}" if names else ""
    title = f"{backend.adapter.title} {backend.facts.version}".rstrip()
    hints = "".join(f"\n{hint[:1].upper()}{hint[1:]}." for hint in backend.facts.hints)
    return {"url": url, "engine": backend.adapter.name}, f"{title}{models}{hints}"

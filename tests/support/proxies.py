"""Other people's proxies in front of a gateway: each is started with its file from deploy/proxies, or with a variant of it."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "proxies"
INSTALLED = {kind: ROOT / f"bench/.envs/{kind}/bin/{kind}" for kind in ("envoy", "traefik")}  # by `make test-proxies`


def _nginx(folder: Path, config: str) -> tuple[str, list[str]]:
    paths = " ".join(f"{name}_temp_path {folder};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    around = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\n"
    return f"{around}http {{ access_log off; {paths}\n{config}\n}}", ["-c"]


def _plain(options: list[str]) -> Callable[[Path, str], tuple[str, list[str]]]:
    return lambda folder, config: (config, options)


def _caddy(folder: Path, config: str) -> tuple[str, list[str]]:
    http2 = "\tservers {\n\t\tprotocols h1 h2 h2c\n\t}\n"  # also without TLS
    return f"{{\n\tadmin off\n\tauto_https off\n{http2}}}\n{config}", ["run", "--adapter", "caddyfile", "--config"]


def _traefik(folder: Path, config: str) -> tuple[str, list[str]]:
    static, _, routes = config.partition(_NEXT_FILE)
    (folder / ROUTES).write_text(routes)
    return static.replace("/etc/traefik/", f"{folder}/"), ["--configFile"]


_NEXT_FILE = "\n# the routes:\n"
_ENVOY_FLAGS = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "-c"]
KINDS: dict[str, tuple[str, Callable[[Path, str], tuple[str, list[str]]]]] = {
    "nginx": ("nginx.conf", _nginx),
    "haproxy": ("haproxy.cfg", _plain(["-db", "-f"])),
    "caddy": ("Caddyfile", _caddy),
    "envoy": ("envoy.yaml", _plain(_ENVOY_FLAGS)),
    "traefik": ("traefik.yaml", _traefik),
}
ROUTES = "traefik-routes.yaml"  # the second file of Traefik, which the first one names


def program(kind: str) -> str | None:
    if kind in INSTALLED and INSTALLED[kind].exists():
        return str(INSTALLED[kind])
    return shutil.which(kind) or shutil.which(kind, path="/usr/sbin")


@contextlib.contextmanager
def proxy(kind: str, upstream: int, folder: Path, change: Callable[[str], str] = str) -> Iterator[int]:
    """Run a proxy with its file, changed by `change`; yield its port."""
    name, make = KINDS[kind]
    port = _free_port()
    config = (FILES / name).read_text() + (_NEXT_FILE + (FILES / ROUTES).read_text() if kind == "traefik" else "")
    changed = change(config)
    assert change is str or changed != config, "the variant is no variant any more"
    for old, new in (
        (":8000", f":{port}"),
        ("listen 8000", f"listen 127.0.0.1:{port}"),
        ("port_value: 8000", f"port_value: {port}"),
    ):
        changed = changed.replace(old, new)
    changed = changed.replace("127.0.0.1:8080", f"127.0.0.1:{upstream}").replace("port_value: 8080", f"port_value: {upstream}")
    text, options = make(folder, changed)
    path = folder / name
    path.write_text(text)
    env = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([str(program(kind)), *options, str(path)], env=env, stdout=output, stderr=output)
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        _wait_for_port(port, process, folder / "output")
        _wait_for_routes(asking)
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        asking.close()  # not before: Traefik might close with it what it uses for the next client (docs/proxies.md)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait_for_routes(asking: http.client.HTTPConnection) -> None:
    """Traefik listens before it has read its routes, and answers 404 until then."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            asking.request("GET", "/health")
            answer = asking.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):  # it speaks HTTP/2 alone
            return
        if answer.status != 404:
            return
        time.sleep(0.02)
    raise AssertionError("no route to the gateway")


def _wait_for_port(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, output.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE_S):
            return
        time.sleep(0.02)
    raise AssertionError(output.read_text())

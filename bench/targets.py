"""What is measured: processes between the load and the benchmark engine, each with the CPU time it used."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.engine import loopback_address
from bench.environments import program

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Target:
    name: str
    port: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    admin_port: int = 0

    def cpu_s(self) -> float:
        """Return the user and system time of the target's processes and their children, in seconds."""
        return sum(_cpu_s(pid) for process in self.processes for pid in _family(process.pid))

    def rss_kb(self) -> int:
        return sum(_rss_kb(pid) for process in self.processes for pid in _family(process.pid))


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(child) for child in children.read_text().split()] if children.exists() else []
    return [pid, *(found for child in below for found in _family(child))]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[str], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not listen on {port}")


@contextlib.contextmanager
def started(arguments: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(arguments, text=True, cwd=ROOT, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def engine(rate: float = 50.0, processes: int = 1, addresses: int = 1) -> Iterator[Target]:
    """Start the paced engine, as one process or as several on one port, at one or more addresses of this host."""
    port = 0
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(processes):
            arguments = [sys.executable, "-m", "bench.engine", str(port), "--rate", str(rate), "--addresses", str(addresses)]
            running.append(stack.enter_context(started(arguments, stdout=subprocess.PIPE)))
            assert running[-1].stdout is not None
            port = int(running[-1].stdout.readline())
        yield Target("direct", port, running)


@contextlib.contextmanager
def standin(**behaviour: Any) -> Iterator[Target]:
    """Start the stand-in engine, with its flags by name."""
    port = free_port()
    arguments = [sys.executable, "-m", "hangup", "standin", "--port", str(port)]
    for name, value in behaviour.items():
        flag = "--" + name.replace("_", "-")
        arguments += [flag] if value is True else [flag, str(value)]
    with started(arguments, stderr=subprocess.DEVNULL) as process:
        wait_for_port(port, process)
        yield Target("direct", port, [process])


def standin_stats(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/standin/stats", timeout=10) as answer:
        return dict(json.loads(answer.read()))


def control_standin(port: int, path: str, **values: Any) -> None:
    """POST /standin/<path>: `behave` changes how it acts, `forget_peaks` resets its peaks."""
    data = json.dumps(values).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/standin/{path}", data, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=10).read()


@contextlib.contextmanager
def hangup(upstream: int | None, *flags: str) -> Iterator[Target]:
    """Start hangup in front of one engine; with None, the flags name a configuration that has the backends."""
    port, admin_port = free_port(), free_port()
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        ports = ["--port", str(port), "--admin-port", str(admin_port)]
        arguments = [sys.executable, "-m", "hangup", "serve", *ports, "--jobs", "none", "--log", log.name]
        arguments += flags if upstream is None else ["--upstream", f"http://127.0.0.1:{upstream}", *flags]
        with started(arguments, stderr=subprocess.DEVNULL) as process:
            wait_for_port(port, process)
            yield Target("hangup", port, [process], admin_port)


@dataclass(frozen=True)
class Pair:
    """An engine by itself, and one of the same kind behind hangup."""

    direct: Target
    behind: Target
    gateway: Target


@contextlib.contextmanager
def pair(*flags: str, **behaviour: Any) -> Iterator[Pair]:
    with standin(**behaviour) as direct, standin(**behaviour) as behind, hangup(behind.port, *flags) as gateway:
        yield Pair(direct, behind, gateway)


@contextlib.contextmanager
def nginx(upstream: int, addresses: int = 1) -> Iterator[Target]:
    program("nginx", "nginx-light")
    port = free_port()
    servers = "".join(f"server {loopback_address(number)}:{upstream};" for number in range(addresses))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(f"""
            worker_processes 1; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
            worker_rlimit_nofile 65536;
            events {{ worker_connections 30000; }}
            http {{
              access_log {folder}/access.log;
              client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
              uwsgi_temp_path {folder}; scgi_temp_path {folder};
              upstream engine {{ {servers} keepalive {512 + 2 * addresses}; keepalive_requests 10000000; }}
              server {{
                listen 127.0.0.1:{port} backlog=4096;
                keepalive_requests 10000000;
                location / {{
                  proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off; proxy_read_timeout 600s;
                }}
              }}
            }}""")
        with started(["nginx", "-c", str(config)]) as process:
            wait_for_port(port, process)
            yield Target("nginx", port, [process])

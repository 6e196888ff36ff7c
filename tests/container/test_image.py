"""The image of deploy/Dockerfile as podman runs it: as nobody, read-only, without capabilities."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tools.container import ENV, IMAGE

from support.linux import proc
from support.raw import Client
from support.waiting import wait_until

if os.environ.get("CONTAINER_TESTS") != "required":
    pytest.skip("run `make test-container`", allow_module_level=True)

LOCKED = "--read-only --read-only-tmpfs=false --cap-drop ALL --security-opt no-new-privileges".split()
# runc works where cgroups are mixed; the limits are those of this machine, which a container may not raise.
HERE = "--network host --no-healthcheck --ulimit nofile=8192:8192 --ulimit nproc=1024:1024".split()


def podman(*arguments: str) -> str:
    done = subprocess.run(
        ["podman", "--runtime", "runc", *arguments], env=ENV, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Container:
    def __init__(self, *options: str) -> None:
        self.name = f"hangup-test-{uuid.uuid4().hex[:8]}"
        self.port = free_port()
        env = ["-e", f"HANGUP_PORT={self.port}", "-e", f"HANGUP_ADMIN_PORT={free_port()}"]
        podman("run", "-d", "--name", self.name, *LOCKED, *HERE, *env, *options, IMAGE)
        wait_until(lambda: "serving http://" in self.output(), what="the container's first words")

    def output(self) -> str:
        done = subprocess.run(["podman", "logs", self.name], env=ENV, capture_output=True, text=True, check=False, timeout=900)
        return done.stdout + done.stderr

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output().splitlines() if line.startswith("{")]

    def inspect(self) -> dict[str, Any]:
        (found,) = json.loads(podman("inspect", self.name))
        return dict(found)

    def client(self) -> Client:
        return Client(("127.0.0.1", self.port))


@pytest.fixture
def start() -> Iterator[Callable[..., Container]]:
    started: list[Container] = []

    def start(*options: str) -> Container:
        started.append(Container(*options))
        return started[-1]

    yield start
    for container in started:
        podman("rm", "-f", "-t", "0", container.name)


STREAM = {"prompt": "ROMEO:", "max_tokens": 400, "stream": True, "ignore_eos": True}


def test_a_hang_up_and_a_drain(start: Callable[..., Container]) -> None:
    container = start()
    status = proc(container.inspect()["State"]["Pid"], "status").read_text()
    assert re.search(r"^Uid:\t65534\t65534", status, re.M) and re.search(r"^CapEff:\t0+$", status, re.M)
    with container.client() as client:
        client.post("/v1/completions", STREAM)
        client.read_until(b"data: ")
    wait_until(lambda: any(row.get("outcome") == "client_gone" for row in container.log()), what="the hang-up in the log")
    with container.client() as client:
        client.post("/v1/completions", STREAM)
        client.read_until(b"data: ")
        command = ["podman", "--runtime", "runc", "stop", "-t", "60", container.name]
        stopping = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while client.read_some():
            pass
        assert b"[DONE]" in client.buffer
        assert stopping.wait(60) == 0
    state = container.inspect()["State"]
    assert state["ExitCode"] == 0 and any(row["event"] == "drain_started" for row in container.log())


def test_the_health_check(start: Callable[..., Container]) -> None:
    container = start()
    kind, *command = image()["Healthcheck"]["Test"]
    assert kind == "CMD"  # not CMD-SHELL
    podman("exec", container.name, *command)
    with pytest.raises(AssertionError, match="refused"):
        podman("exec", "-e", f"HANGUP_PORT={free_port()}", container.name, *command)


def image() -> dict[str, Any]:
    (found,) = json.loads(podman("image", "inspect", IMAGE))
    return {"Healthcheck": found["Healthcheck"], **found["Config"]}


def test_nothing_needs_a_shell() -> None:
    config = image()
    assert config["Entrypoint"] == ["/opt/hangup/bin/hangup"] and config["Cmd"][0] == "serve"
    assert config["User"] == "65534:65534" and config["StopSignal"] in ("SIGTERM", "15")


def test_jobs_need_a_volume(start: Callable[..., Container]) -> None:
    assert [row for row in start().log() if row["event"] == "jobs_disabled"]
    volume = f"hangup-test-{uuid.uuid4().hex[:8]}"
    container = start("-v", f"{volume}:/var/lib/hangup")
    try:
        assert not [row for row in container.log() if row["event"] == "jobs_disabled"]
        assert f"jobs-{container.port}.sqlite" in podman("exec", container.name, "ls", "/var/lib/hangup")
    finally:
        podman("rm", "-f", "-t", "0", container.name)
        podman("volume", "rm", volume)


def test_the_documentation_is_in_it() -> None:
    assert podman("run", "--rm", *LOCKED, *HERE, IMAGE, "docs", "operations").startswith("# Operations")

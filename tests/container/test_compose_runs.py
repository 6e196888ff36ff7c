"""deploy/compose as Docker Compose itself runs it, on podman: a hang-up, Prometheus' look at hangup, and the end.

Images cannot be pulled, so stand-ins have their names: hangup's own image with a stand-in engine for llama.cpp, and Debian's
Prometheus. Grafana has none. There is no bridge network and no systemd here: all share the host's network, and nothing checks
their health.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.container import ENV, IMAGE, STAND_IN

from support.raw import Client
from support.waiting import wait_until

if os.environ.get("CONTAINER_TESTS") != "required":
    pytest.skip("run `make test-container`", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
COMPOSE = ROOT / "bench/.envs/compose/bin/docker-compose"  # installed by `make test-container`
TOKEN = "0123456789abcdef"
HERE = """\
  {}:
    network_mode: host
    networks: !reset null
    ports: !reset []
    extra_hosts: ["engine:127.0.0.1", "hangup:127.0.0.1", "prometheus:127.0.0.1"]
    healthcheck: {{disable: true}}
    ulimits: !override {{nofile: 8192, nproc: 1024}}
    pull_policy: never
    restart: "no"
"""
ENGINE = """\
    image: hangup:0.1.0
    command: [standin, --host, 127.0.0.1, --port, "8000"]
    volumes: !reset []
"""
PROMETHEUS = f"""\
FROM {STAND_IN}
COPY prometheus /bin/prometheus
RUN mkdir -p /prometheus && chown 65534:65534 /prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Run Docker Compose with podman as its server."""
    if not COMPOSE.exists():
        pytest.skip("Docker Compose could not be installed")
    folder = tmp_path_factory.mktemp("compose")
    changes = "".join(map(HERE.format, ("hangup", "prometheus", "grafana", "llamacpp")))
    (folder / "here.yaml").write_text(f"services:\n{changes}{ENGINE}")
    server = f"unix://{folder}/podman.sock"
    env = {**ENV, "DOCKER_HOST": server, "HANGUP_ADMIN_TOKEN": TOKEN, "COMPOSE_PROJECT_NAME": "hangup-test"}
    subprocess.run(["podman", "tag", IMAGE, "docker.io/library/hangup:0.1.0"], env=ENV, check=True, timeout=60)
    process = subprocess.Popen(
        ["podman", "--runtime", "runc", "system", "service", "--time=600", server], env=ENV, stderr=subprocess.DEVNULL
    )

    def run(*arguments: str, file: str = "llamacpp.yaml") -> str:
        files = ["-f", str(FOLDER / file), *(["-f", f"{folder}/here.yaml"] if file == "llamacpp.yaml" else [])]
        command = [str(COMPOSE), *files, *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        wait_until((folder / "podman.sock").exists, what="podman's socket")
        yield run
        run("down", "-v", "-t", "0")
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("file", ["llamacpp.yaml", "vllm.yaml"])
def test_compose_accepts_the_file(file: str, compose: Callable[..., str]) -> None:
    services = json.loads(compose("config", "--format", "json", file=file))["services"]
    assert set(services) == {"hangup", "prometheus", "grafana", file.removesuffix(".yaml")}
    for service in services.values():  # Docker would make a folder of a file that is missing
        assert all(
            Path(volume["source"]).exists()
            for volume in service.get("volumes", [])
            if volume["type"] == "bind" and "models" not in volume["target"]
        )


def test_a_hang_up_a_look_and_the_end(compose: Callable[..., str], tmp_path: Path) -> None:
    has_prometheus = make_prometheus(tmp_path)
    compose("up", "-d", "--no-build", "hangup", "llamacpp", *(["prometheus"] if has_prometheus else []))
    wait_until(lambda: '"backend_found"' in compose("logs", "hangup"), what="the engine in hangup's log")
    with Client(("127.0.0.1", 8080)) as client:
        client.post("/v1/completions", {"model": "standin", "prompt": "x", "max_tokens": 100_000, "stream": True})
        client.read_until(b"data: ")
    wait_until(lambda: asked("http://127.0.0.1:8000/standin/stats")["aborted"] == 1, what="the engine has stopped")
    if has_prometheus:
        wait_until(lambda: health_of_targets() == ["up"], what="Prometheus has looked at hangup, with the token")
        (group,) = asked("http://127.0.0.1:9090/api/v1/rules")["data"]["groups"]
        assert {rule.get("health") for rule in group["rules"]} <= {"ok", "unknown"}
    compose("stop", "hangup")
    (state,) = json.loads(f"[{compose('ps', '-a', '--format', 'json', 'hangup')}]")
    assert state["ExitCode"] == 0 and TOKEN not in compose("logs")


def make_prometheus(folder: Path) -> bool:
    program = shutil.which("prometheus")
    if program is None:
        return False
    shutil.copy(program, folder / "prometheus")
    (folder / "Dockerfile").write_text(PROMETHEUS)
    name = next(line.split()[1] for line in (FOLDER / "common.yaml").read_text().splitlines() if "image: prom/" in line)
    command = ["buildah", "bud", "-q", "--isolation", "chroot", "--format", "docker", "-t", f"docker.io/{name}", str(folder)]
    subprocess.run(command, env=ENV, check=True, timeout=300, stdout=subprocess.DEVNULL)
    return True


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def health_of_targets() -> list[str]:
    """Return nothing while Prometheus is not up yet."""
    try:
        return [target["health"] for target in asked("http://127.0.0.1:9090/api/v1/targets")["data"]["activeTargets"]]
    except OSError:
        return []

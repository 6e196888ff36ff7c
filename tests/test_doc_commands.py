"""Every command in the documentation is run, against a stand-in engine and a gateway before it, or named below with the reason.

The addresses of the examples are replaced by those of the processes that run here. A command that serves is started, awaited
and ended; every other one must succeed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangup.config.load import load
from support.processes import HANGUP, Gateway, Process, StandIn
from support.raw import ask
from support.waiting import wait_until
from test_house import ROOT, commands, lines_of

DOCS = ROOT / "docs"
ASKED = "hu-3f9c0a7be1d24c55a0e1b2c3"  # a call in the examples
NOT_RUN = {  # by how the command begins, or by a part of it: why it is not run here
    "make ": "its targets are what runs the tests, and more; tests/test_house.py checks their names",
    "pip install": "needs a package index; `make test-package` installs the wheel",
    "uvx ": "needs a package index; `make test-package` installs the wheel",
    "docker ": "there is no container engine here",
    "kubectl ": "there is no cluster here; `make test-package` renders and checks the files",
    "helm ": "there is no cluster here; `make test-package` renders the chart and checks what it says",
    "vllm serve": "needs a GPU or 4 GB of packages; `make test-engines`",
    "python -m sglang": "needs a GPU",
    "llama-server ": "`make test-engines ENGINES=llamacpp`",
    'hangup serve --spawn "llama-server': "`make test-engines ENGINES=llamacpp`; tests/reaper/test_faults.py spawns engines",
    "ollama serve": "is not installed here",
    "hangup demo": "takes a minute; tests/engine/test_demo.py",
    "hangup top": "draws until it is ended; tests/admin/test_top.py",
    "hangup probe http": "takes a minute; tests/probe/test_probe.py",
    "hangup simulate": "takes minutes, and traces from elsewhere; tests/sim/test_simulate.py",
    "hangup lint": "tests/lint/test_command.py",
    "hangup kill --tenant batch --older-than 60s  ": "nothing matches here, which is an error; it is run with --dry-run",
}
SERVES = ("hangup serve", "hangup engine")
_SERVED: list[list[str]] = []
PAGES = sorted({page for page, _ in commands() if page == "README.md" or page.startswith("docs/")})


def why_not(command: str) -> str:
    return next((why for part, why in NOT_RUN.items() if command.startswith(part)), "")


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(token_s=0.001) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url) as gateway:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        assert ask(gateway.address, "/v1/chat/completions", body, {"X-Request-Id": ASKED}).status == 200
        yield gateway


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the examples speak of."""
    monkeypatch.chdir(tmp_path)
    request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [], "max_tokens": 2}}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    model = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": "http://127.0.0.1:9/v1"}}
    (tmp_path / "config.yaml").write_text(json.dumps({"model_list": [model]}))  # JSON is YAML
    (tmp_path / "key").write_text("key")
    return tmp_path


class Sandbox:
    """Replaces the examples' addresses by those of processes that run here."""

    def __init__(self, engine: StandIn, gateway: Gateway, folder: Path) -> None:
        self.job = "job_3f9c0a7be1d24c55a0e1b2c3"
        at, through = engine.url.removeprefix("http://"), gateway.url.removeprefix("http://")
        self._places = {
            "http://10.0.0.2:8000": "http://127.0.0.1:9",
            **dict.fromkeys(["127.0.0.1:8000", "10.0.0.1:8000", "127.0.0.1:30000", "127.0.0.1:3000", "127.0.0.1:11434"], at),
            "localhost:8000": through,
            "127.0.0.1:8080": through,
            "/run/secrets/openai": str(folder / "key"),
            "/run/secrets/admin-token": str(folder / "key"),
            '{"messages": …}': '{"messages": [], "max_tokens": 2}',
            "hangup engine --port 8000": "hangup engine --port 0",
            "hangup init": "hangup init --force",
        }
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HANGUP_")}
        ports = {"HANGUP_PORT": "0", "HANGUP_ADMIN_PORT": "0"}
        urls = {"HANGUP_ADMIN_URL": gateway.admin_url, "HANGUP_URL": gateway.url}
        self.env = clean | ports | urls | {"ANTHROPIC_API_KEY": "key", "XDG_STATE_HOME": str(folder)}

    def placed(self, text: str) -> str:
        for place, here in self._places.items():
            text = text.replace(place, here)
        return text.replace("job_3f9c0a7be1d24c55a0e1b2c3", self.job)

    def run(self, command: str) -> None:
        command = self.placed(command)
        if command.startswith(SERVES):
            words = shlex.split(command, comments=True)[1:]
            if words not in _SERVED:  # the pages of engines differ in the address alone
                _SERVED.append(words)
                self._serve(words)
            return
        ours = f'hangup() {{ {shlex.join(HANGUP)} "$@"; }}; curl() {{ command curl --fail "$@"; }}'
        program = f"{ours}; set -o pipefail; {command}"
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=self.env, timeout=120, check=False)
        # `head` closes the pipe, which is the point of the example.
        expected = {0, 23, 141} if "| head" in command else {0}
        assert done.returncode in expected, f"{command}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
        if found := re.search(r"^location: /v1/jobs/(job_\w+)", done.stdout, re.M | re.I):
            self.job = found[1]

    def _serve(self, arguments: list[str]) -> None:
        with Process(*arguments, env=self.env) as process:
            process.find_line(r"serving http|engine on http")
            process.signal(signal.SIGTERM)
            assert process.wait() == 0, process.stderr_lines


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page: str, engine: StandIn, gateway: Gateway, folder: Path) -> None:
    sandbox = Sandbox(engine, gateway, folder)
    text = (ROOT / page).read_text()
    if example := re.search(r"```toml\n(# hangup\.toml\n.*?)```", text, re.S):
        digest = example[1].replace("…64 hex digits from `hangup key new`…", "0" * 64)
        (folder / "hangup.toml").write_text(sandbox.placed(digest))
    wait_until(lambda: gateway.ready() == 200, what="the gateway")
    done = set[str]()
    for command in [command for where, command in commands() if where == page and not why_not(command)]:
        plain = command.partition("  #")[0].strip()
        if not plain.startswith("curl") or shutil.which("curl"):
            if plain not in done or plain.startswith("hangup undrain"):
                sandbox.run(command)
            done.add(plain)


def test_each_exception_is_needed() -> None:
    found = [command for _, command in commands()]
    assert [part for part in NOT_RUN if not any(command.startswith(part) for command in found)] == [], "not in any page"


@pytest.mark.parametrize("page", sorted(DOCS.glob("engine-*.md")), ids=lambda page: page.stem)
def test_the_configuration_of_each_engine_is_valid(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)
    assert blocks
    for block in blocks:
        (tmp_path / "hangup.toml").write_text(block)
        assert load(tmp_path / "hangup.toml").settings.backend


def test_each_page_is_in_the_navigation_and_reads_well_in_a_terminal() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.glob("*.md"):
        assert re.search(rf": {re.escape(page.name)}$", navigation, re.M), f"mkdocs.yml lacks {page.name}"
        for number, line, in_code in lines_of(page):
            assert in_code or not re.match(r"\s*(<div|<details|!!!|\?\?\?|=== )", line), f"{page.name}:{number}"

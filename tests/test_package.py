"""The wheel as built and installed: the library and the linter need no other package, and include their types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

APPLICATION = """\
from collections.abc import AsyncIterator

import hangup
import hangup.sources
from hangup.lint import RULES


async def tokens() -> AsyncIterator[str]:
    yield "a"


def handler(scope: dict[str, object], receive: object) -> object:
    return hangup.stream((scope, receive), tokens(), first_token_s=10)


def on_error(error: Exception) -> hangup.ErrorAnswer | None:
    return hangup.ErrorAnswer(503, {"busy": True}) if isinstance(error, hangup.UpstreamError) else None


async def whole(request: object) -> int:
    reveal_type(await hangup.run(request, lambda token: token.cancelled))
    return len(await hangup.run(request, text(), total_s=60))


async def text() -> str:
    return "an answer"


@hangup.tethered(total_s=60)
async def tethered(request: object) -> bytes:
    return b""


reveal_type(tethered)
reveal_type(hangup.sources.vllm)
reveal_type(hangup.CancelToken())
reveal_type(RULES)
"""
REVEALED = ["bool", "def (request: object) -> typing.Coroutine[Any, Any, bytes]", "CountedChunk", "CancelToken", "Rule]"]

MISTAKES = """\
import hangup

hangup.Gate(slots="8")
hangup.tethered(tootal_s=3)
hangup.stream(None, None, max_tokens="many")
hangup.stream(None, None, on_error=lambda error: 429)
hangup.ErrorAnswer("429", {})
"""


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target)
    assert built.returncode == 0, built.stderr
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with hangup and nothing else, installed without an index; return its Python."""
    home = tmp_path_factory.mktemp("clean")
    assert run(sys.executable, "-m", "venv", "--without-pip", home).returncode == 0
    python = home / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-compile", wheel)
    assert done.returncode == 0, done.stderr
    return python


def test_the_library_and_the_linter_work_alone(clean: Path, tmp_path: Path) -> None:
    code = "import hangup, hangup.lint; [getattr(hangup, name) for name in hangup.__all__]"
    done = run(clean, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    leaking = tmp_path / "leaking.py"
    leaking.write_text((ROOT / "examples/leaking.py").read_text())
    done = run(clean.with_name("hangup"), "lint", leaking, cwd=tmp_path)
    assert done.returncode == 1 and "HU0" in done.stdout, done.stderr


def test_commands_that_need_the_gateway_name_the_extra(clean: Path, tmp_path: Path) -> None:
    hangup = clean.with_name("hangup")
    for command in (["serve", "--upstream", "http://127.0.0.1:8000"], ["demo"], ["config", "show"], ["serve", "--help"]):
        done = run(hangup, *command, cwd=tmp_path)
        assert done.returncode == 1, done.stdout
        assert f"`hangup {command[0]}` needs" in done.stderr and "pip install 'hangup[gateway]'" in done.stderr
        assert f"uvx --from 'hangup[gateway]' hangup {command[0]}\n" in done.stderr
    done = run(hangup, "--help", cwd=tmp_path)
    assert done.returncode == 0 and "serve" in done.stdout and "lint" in done.stdout


def test_mypy_sees_our_types_from_outside(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean), "--cache-dir", str(tmp_path)]
    done = run(*command, "application.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == len(REVEALED), revealed
    for seen, expected in zip(revealed, REVEALED, strict=True):
        assert expected in seen, revealed
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    done = run(*command, "mistakes.py", cwd=tmp_path)
    lines = {int(line) for line in re.findall(r"^mistakes.py:(\d+): error", done.stdout, re.M)}
    assert lines == set(range(3, 8)), done.stdout


def test_the_wheel_holds_the_package_and_no_more(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "hangup/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"hangup", f"hangup-{wheel.name.split('-')[1]}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_every_package_that_is_imported_is_declared() -> None:
    """Each import belongs to an extra, or to a framework whose requests and clients the application hands to the library."""
    frameworks = {"aiohttp", "asgiref", "django", "httpx", "httpx2", "litestar", "quart", "sanic", "starlette", "werkzeug"}
    frameworks |= {"mcp", "mlx_lm", "transformers"}  # engines
    frameworks |= {"pytest"}  # of the probe's plugin
    other_names = {
        "dns": "dnspython",
        "pynvml": "nvidia_ml_py",
        "opentelemetry": "opentelemetry_proto",
        "google": "opentelemetry_proto",
    }
    wanted = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    declared = {re.split(r"[\[>=<]", line)[0].replace("-", "_").lower() for line in wanted}
    known = declared | frameworks | set(sys.stdlib_module_names)
    assert PROJECT["dependencies"] == []
    for path in (ROOT / "src").rglob("*.py"):
        unknown = {other_names.get(name, name) for name in _imported(ast.parse(path.read_text()))} - known
        assert not unknown, f"{path} imports what no extra has"


def _imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found

"""Wheel and sdist as people get them: built once, checked, installed into a clean environment for each Python, and run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from support.processes import Gateway
from support.raw import Client
from support.waiting import wait_until

if os.environ.get("PACKAGE_TESTS") != "required":
    pytest.skip("run `make test-package`", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HANGUP_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, env={**env, "NO_COLOR": "1"}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def interpreter(version: str) -> Path | None:
    """Return a Python of this version, from the path or from pyenv, whose shims fail for versions that are not chosen."""
    own = [Path(sys.executable)] if version == f"{sys.version_info.major}.{sys.version_info.minor}" else []
    found = shutil.which(f"python{version}")
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for path in [*own, *([Path(found)] if found else []), *installed]:
        asked = subprocess.run(
            [path, "-c", "import sys, venv; print(sys.version[:4])"], capture_output=True, text=True, check=False, timeout=900
        )
        if asked.stdout.strip() == version:
            return path
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, as an index and pip do."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", target, cwd=ROOT)
    (sdist,) = target.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(target / "unpacked", filter="data")
    (unpacked,) = (target / "unpacked").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=unpacked)
    (wheel,) = target.glob("*.whl")
    return wheel, sdist


def test_an_index_would_take_them(built: tuple[Path, Path], tmp_path: Path) -> None:
    shown = run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=tmp_path)
    assert shown.count("PASSED") == 2, shown


def test_the_wheel_is_the_same_with_and_without_an_sdist(built: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (direct,) = tmp_path.glob("*.whl")
    with ZipFile(direct) as one, ZipFile(built[0]) as other:
        assert {entry.filename: entry.CRC for entry in one.infolist()} == {
            entry.filename: entry.CRC for entry in other.infolist()
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_installed_for_this_python(version: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not here")
    home = tmp_path / "env"
    run(UV, "venv", "--no-project", "--python", python, home, cwd=tmp_path)
    package = f"hangup[gateway] @ {built[0].as_uri()}"
    pinned = ROOT / "requirements/run.txt"
    run(UV, "pip", "install", "--no-verify-hashes", "--python", home, "-c", pinned, package, cwd=tmp_path)
    hangup = home / "bin" / "hangup"
    assert "hangup docs" in run(hangup, "--help", cwd=tmp_path)
    assert run(hangup, "docs", "configuration", cwd=tmp_path).startswith("# Configuration")
    a_client_hangs_up_on(hangup)


def a_client_hangs_up_on(hangup: Path) -> None:
    class Installed(Gateway):
        program = [str(hangup)]

    with Installed() as gateway:
        with Client(gateway.address) as client:
            client.post("/v1/completions", {"prompt": "ROMEO:", "max_tokens": 500, "stream": True, "ignore_eos": True})
            client.read_until(b"data: ")
        wait_until(
            lambda: any(row.get("outcome") == "client_gone" for row in gateway.log()), what="the hang-up in the gateway's log"
        )
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0


def test_the_sdist_installs(built: tuple[Path, Path], tmp_path: Path) -> None:
    home = tmp_path / "env"
    run(UV, "venv", "--no-project", "--python", sys.executable, home, cwd=tmp_path)
    pinned = ROOT / "requirements/build.txt"
    run(UV, "pip", "install", "--no-verify-hashes", "--python", home, "-b", pinned, built[1], cwd=tmp_path)
    assert "stream" in run(home / "bin" / "hangup", "docs", "library", cwd=tmp_path)


def test_uvx_runs_the_demo(built: tuple[Path, Path], tmp_path: Path) -> None:
    """As in README, with the wheel instead of an index. The demo compares two phases; here they are short."""
    shown = run(
        *(UV, "tool", "run", "--python", sys.executable, "--from", f"hangup[gateway] @ {built[0].as_uri()}"),
        *("hangup", "demo", "--seconds", "3"),
        cwd=tmp_path,
    )
    assert "with hangup" in shown and "completed" in shown, shown

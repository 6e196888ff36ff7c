"""`make judge` reports each missing tool once, and judges with the others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench import environments
from bench.environments import NotInstalled, environment, program

Ran = list[list[str]]


@pytest.fixture
def nothing_installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ran:
    ran: Ran = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(list(command))
        words = "WARNING: whatever\nERROR: No matching distribution found for judge==1 (from versions: " + "0.1, " * 500 + ")\n"
        return subprocess.CompletedProcess(command, 0 if "venv" in command else 1, "", words)

    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(environments, "_failed", {})
    monkeypatch.setattr("bench.environments.subprocess.run", run)
    monkeypatch.setattr("bench.environments.shutil.which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr("bench.environments.os.geteuid", lambda: 0)
    return ran


def test_what_pip_cannot_install_is_named_briefly_and_tried_once(nothing_installs: Ran) -> None:
    for _ in range(3):
        with pytest.raises(NotInstalled, match="judge is missing: pip cannot install judge==1: ERROR: No matching") as missing:
            environment("judge", "judge==1")
        assert len(str(missing.value)) < 400
    assert len(nothing_installs) == 2  # the environment, and pip


def test_what_apt_get_cannot_install_is_named_with_its_package(nothing_installs: Ran) -> None:
    for _ in range(3):
        with pytest.raises(NotInstalled, match=r"nginx is missing \(apt-get install nginx-light\): apt-get update failed"):
            program("nginx", "nginx-light")
    assert len(nothing_installs) == 1


def test_without_root_nothing_is_tried(nothing_installs: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.environments.os.geteuid", lambda: 1000)
    with pytest.raises(NotInstalled, match="we are not root"):
        program("nginx", "nginx-light")
    assert not nothing_installs

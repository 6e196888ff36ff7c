"""hangup.service and hangup.socket under systemd itself, as process 1 of its own namespaces (boot.sh): start, reload, restart
while a client connects, a hang that the watchdog ends, stop during a call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STUBS = ("sysinit.target", "basic.target", "sockets.target", "shutdown.target", "network-online.target", "multi-user.target")
UNITS = {
    **{name: f"[Unit]\nDescription={name}\nDefaultDependencies=no\n" for name in STUBS},
    "test.target": "[Unit]\nWants=check.service\n",
    "check.service": "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/opt/python/bin/python3 -P /opt/test/check.py\n"
    "StandardOutput=append:/opt/test/check.log\nStandardError=append:/opt/test/check.log\n",
    "engine.service": "[Unit]\nDefaultDependencies=no\n[Service]\nStandardOutput=null\n"
    "ExecStart=/opt/hangup/bin/hangup standin --port 9000 --token-s 0.05\n",
    # Its output to a file, because there is no journal here; and a quick watchdog.
    "hangup.service.d/test.conf": "[Service]\nStandardOutput=append:/opt/test/hangup.log\n"
    "StandardError=append:/opt/test/hangup.log\nWatchdogSec=3\n",
}


def can_boot(folder: Path) -> str:
    """Return why systemd cannot be booted here, or ""."""
    if os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists() or shutil.which("unshare") is None:
        return "needs root, systemd and unshare"
    (folder / "a").mkdir()
    probe = (
        f"mount -t cgroup2 none {folder}/a && mount -t overlay -o lowerdir=/,upperdir=/dev/shm,workdir=/dev/shm none {folder}/a"
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", probe.partition(" && ")[0]], capture_output=True, check=False)
    known = Path("/proc/filesystems").read_text()
    return "" if done.returncode == 0 and "overlay" in known else "cgroup2 or overlay cannot be mounted here"


def test_the_units(tmp_path: Path) -> None:
    if reason := can_boot(tmp_path):
        pytest.skip(reason)
    folder = tmp_path / "test"
    for name, text in UNITS.items():
        path = folder / "units" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(HERE / "check.py", folder)
    for path in (tmp_path, folder):
        path.chmod(0o755)
    paths = (folder, sys.base_prefix, sysconfig.get_path("purelib"), ROOT / "src", ROOT / "deploy/systemd")
    command = ["unshare", "--mount", "sh", str(HERE / "boot.sh"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, stdin=subprocess.DEVNULL)
    log = (folder / "hangup.log").read_text() if (folder / "hangup.log").exists() else ""
    assert (folder / "seen.json").exists(), f"{done.stdout}\n{done.stderr}\n{log}"
    seen: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    assert "error" not in seen and seen["started"] == "", f"{seen}\n{log}"
    assert seen["user"] == "hangup" and "serving http://127.0.0.1:8080" in seen["status"]
    assert seen["reloaded"] == ""
    assert seen["restarted"] == 0
    for when in ("answer", "during_restart", "after the watchdog", "during_stop"):
        assert "[DONE]" in seen[when], (when, seen[when])
    assert seen["result"] == "success"

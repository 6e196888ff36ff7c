"""Runs inside the machine of boot.sh, as systemd's child: uses hangup's units as an administrator does; writes what it saw."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable

CONFIG = pathlib.Path("/etc/hangup/hangup.toml")
BACKEND = '[[backend]]\nurl = "http://127.0.0.1:9000"\n'
CALL = json.dumps({"messages": [], "stream": True, "max_tokens": 30})
seen: dict[str, object] = {}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return (done.stdout + done.stderr + (f" status {done.returncode}" if done.returncode else "")).strip()


def show(name: str) -> str:
    return run("systemctl", "show", "-P", name, "hangup.service")


def stream(part: int = 0) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=100)
    connection.request("POST", "/v1/chat/completions", CALL)
    answer = connection.getresponse()
    with contextlib.closing(connection):
        return answer.read1(part) if part else answer.read()


def main() -> None:
    run("systemd-sysusers", "/opt/units/hangup.sysusers")
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(BACKEND)
    CONFIG.chmod(0o644)
    seen["started"] = run("systemctl", "start", "engine.service", "hangup.socket", "hangup.service")
    seen["status"] = show("StatusText")
    seen["user"] = run("stat", "-c", "%U", f"/proc/{show('MainPID')}")
    seen["answer"] = stream().decode()
    stream(1)  # and leaves
    CONFIG.write_text(f"heartbeat_s = 5\n{BACKEND}")
    seen["reloaded"] = run("systemctl", "reload", "hangup.service")
    wait_until(lambda: logged("config_reloaded") and logged("client_gone"), "a reload and a hang-up in the log")
    waiting = threading.Thread(target=lambda: seen.update(during_restart=stream().decode()))
    restarting = subprocess.Popen(["systemctl", "restart", "hangup.service"])
    while show("ActiveState") == "active" and restarting.poll() is None:
        time.sleep(0.01)
    waiting.start()
    seen["restarted"] = restarting.wait(100)
    waiting.join(100)
    os.kill(int(show("MainPID")), signal.SIGSTOP)  # hangs: the watchdog kills it
    wait_until(lambda: show("NRestarts") != "0" and show("ActiveState") == "active", "a restart by the watchdog")
    seen["after the watchdog"] = stream().decode()
    live = threading.Thread(target=lambda: seen.update(during_stop=stream().decode()))
    live.start()
    wait_until(has_a_call, "a live call")
    seen["stopped"] = run("systemctl", "stop", "hangup.socket", "hangup.service")
    live.join(100)
    seen["result"] = show("Result")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def logged(event: str) -> bool:
    return event in pathlib.Path("/opt/test/hangup.log").read_text()


def has_a_call() -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", 8081, timeout=100)
    with contextlib.closing(connection):
        connection.request("GET", "/api/calls")
        return bool(json.loads(connection.getresponse().read())["calls"])


try:
    main()
except BaseException as error:
    seen["error"] = repr(error)
pathlib.Path("/opt/test/seen.json").write_text(json.dumps(seen))
run("systemctl", "poweroff", "--force", "--force")

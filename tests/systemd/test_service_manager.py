"""systemd's side played with real sockets and processes: notifications, the watchdog, and sockets that it opened."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangup.gateway.service_manager import ServiceManager
from support.linux import proc
from support.processes import HANGUP, Gateway, StandIn
from support.raw import Client
from support.waiting import PATIENCE_S, wait_until

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
WORKERS = pytest.mark.parametrize("workers", [1, 2])
SIGNS = 2000  # more than any queue of datagrams holds
EXPOSURE_MAX = 2.0  # of 10, by `systemd-analyze security`
# systemd sets the process id after its fork, and passes sockets from number 3 on.
AS_SYSTEMD_DOES = """
import os, sys
_, number, names, *command = sys.argv
os.dup2(int(number), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES=names)
os.execv(command[0], command)
"""


class Listener:
    """The other end of NOTIFY_SOCKET. It reads at once, as systemd does: the kernel keeps ten messages."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._messages: queue.Queue[list[str]] = queue.Queue()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.address)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := self._sock.recv(4096):
            self._messages.put(data.decode().split("\n"))
        self._sock.close()

    def any(self) -> list[str]:
        return self._messages.get(timeout=PATIENCE_S)

    def next(self) -> list[str]:
        """Return the next message that is no sign of life."""
        while (lines := self.any()) == ["WATCHDOG=1"]:
            pass
        return lines

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", self.address)
        self._thread.join(PATIENCE_S)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path / "notify")
    yield listener
    listener.close()


@WORKERS
def test_ready_watched_reloading_stopping(workers: int, engine: StandIn, listener: Listener) -> None:
    env = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "300000"}
    with Gateway(engine.url, workers=workers, env=env) as gateway:
        first = listener.next()
        assert first[0] == "READY=1" and gateway.url in first[1]
        for _ in range(3):
            assert listener.any() == ["WATCHDOG=1"]
        for child in children(gateway.popen.pid):  # a worker that told systemd anything would speak for the whole
            assert b"NOTIFY_SOCKET" not in proc(child, "environ").read_bytes()
        assert len(children(gateway.popen.pid)) == (0 if workers == 1 else workers)
        gateway.signal(signal.SIGHUP)
        kind, at = listener.next()
        assert kind == "RELOADING=1" and at.startswith("MONOTONIC_USEC=")
        assert listener.next() == ["READY=1"]
        gateway.signal(signal.SIGTERM)
        assert listener.next()[0] == "STOPPING=1"
        assert gateway.wait() == 0


def children(pid: int) -> list[int]:
    found = [int(child) for task in proc(pid, "task").iterdir() for child in (task / "children").read_text().split()]
    return [child for child in found if b"resource_tracker" not in proc(child, "cmdline").read_bytes()]


def test_a_manager_that_is_gone_harms_nothing(engine: StandIn, tmp_path: Path) -> None:
    with Gateway(engine.url, env={"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "100000"}) as gateway:
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0


def test_a_manager_that_does_not_read_is_not_waited_for_and_misses_nothing(tmp_path: Path) -> None:
    """Signs of life are dropped while its queue is full; what it must know is sent, in order, once it reads."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(tmp_path / "notify"))
        inbox.setblocking(False)
        manager = ServiceManager()
        manager.connect({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert manager._notify is not None
        with manager._notify:
            found = asyncio.run(told_late(manager, inbox))
    signs = found.index(b"STOPPING=1")
    assert 0 < signs < SIGNS and found[:signs] == [b"WATCHDOG=1"] * signs, "its queue was full of signs, and no more waited"
    assert [line for line in found if line != b"WATCHDOG=1"] == [b"STOPPING=1", b"READY=1"]


async def told_late(manager: ServiceManager, inbox: socket.socket) -> list[bytes]:
    """Return the first line of each message that a manager finds that began to read late."""
    loop = asyncio.get_running_loop()
    manager.ready("serving")
    assert inbox.recv(4096).startswith(b"READY=1")
    for _ in range(SIGNS):
        manager._send_sign()
    manager.stopping()
    manager.tell("READY=1")
    found: list[bytes] = []
    while b"READY=1" not in found:
        message = await asyncio.wait_for(loop.sock_recv(inbox, 4096), PATIENCE_S)
        found.append(message.partition(b"\n")[0])
    return found


def activated(sock: socket.socket, names: str = "hangup") -> type[Gateway]:
    class Activated(Gateway):
        program = [sys.executable, "-c", AS_SYSTEMD_DOES, str(sock.fileno()), names, *HANGUP]
        pass_fds = (sock.fileno(),)

    return Activated


@WORKERS
def test_a_socket_of_systemd_survives_a_restart(workers: int, engine: StandIn) -> None:
    """A client that connects while hangup restarts waits, and is served; without the socket it would be refused."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        kind, address = activated(sock), sock.getsockname()
        with Client(address) as early:
            early.chat(max_tokens=2)
            with kind(engine.url, workers=workers) as gateway:
                assert gateway.address == address
                assert early.read_answer().status == 200
                with Client(address) as leaving:  # hang-ups are noticed there, too
                    leaving.chat(stream=True, max_tokens=100_000, headers={"X-Request-Id": "leaves"})
                    leaving.read_until(b"data: ")
                assert gateway.call_log("leaves")["outcome"] == "client_gone"
                gateway.signal(signal.SIGTERM)
                assert gateway.wait() == 0
        with Client(address) as between:
            between.chat(max_tokens=2)
            with kind(engine.url, workers=workers):
                assert between.read_answer().status == 200


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd is not installed")
def test_systemds_own_activation(engine: StandIn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", "--fdname=hangup", *HANGUP]
    process = subprocess.Popen([*command, "serve", "--upstream", engine.url, "--admin-port", "0"], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port), what="systemd-socket-activate")
        with Client(("127.0.0.1", port)) as client:
            client.chat(max_tokens=2)
            assert client.read_answer().status == 200
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S):
            return True
    except OSError:
        return False


def test_an_address_that_the_settings_deny_is_refused(engine: StandIn) -> None:
    """Otherwise an admin port that is open to the network would need no token, because admin_host says loopback."""
    with socket.create_server(("0.0.0.0", 0)) as sock:
        kind = activated(sock, "admin")
        with pytest.raises(AssertionError, match=r"but admin_host is 127\.0\.0\.1"):
            kind(engine.url)


def test_what_is_no_listening_socket_is_refused() -> None:
    """The numbers from 3 on belong to pytest here, so a child plays it."""
    code = "import os, sys; from hangup.gateway.service_manager import ServiceManager as S; S().connect(os.environ)"
    for opened, error in (("3</dev/null", "is not a socket"), ("", "")):
        done = subprocess.run(
            ["sh", "-c", f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" {opened}', "sh", HANGUP[0], "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (error or "Bad file descriptor") in done.stderr and done.returncode == 1


def test_what_is_meant_for_others_is_not_taken() -> None:
    others = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid() + 1), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    environment = {"HOME": "/", **others}
    manager = ServiceManager()
    manager.connect(environment)
    assert environment == {"HOME": "/"} and manager.take_socket("port") is None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_valid_and_shut_in(tmp_path: Path) -> None:
    for unit in ("hangup.service", "hangup.socket"):
        (tmp_path / unit).write_text((UNITS / unit).read_text().replace("/opt/hangup/bin/hangup", "/bin/true"))
    service = tmp_path / "hangup.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", service, tmp_path / "hangup.socket"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
    limit = f"--threshold={EXPOSURE_MAX * 10:g}"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", limit, service],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout

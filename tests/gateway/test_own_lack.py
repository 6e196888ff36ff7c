"""Distinguishes connection failures that this host causes from those that say something about the engine."""

from __future__ import annotations

import asyncio
import errno
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from hangup.config import BackendSettings, LimitSettings
from hangup.errors import EngineFault, OutOfResources
from hangup.gateway.backends import own_lack
from hangup.gateway.backends.backend import Backend

NO_ADDRESS = "[Errno 99] Cannot assign requested address"
REFUSED = "[Errno 111] Connection refused"
V4, V6 = (socket.AF_INET, ("127.0.0.1", 9)), (socket.AF_INET6, ("::1", 9, 0, 0))


class _Resolver:
    def __init__(self, *addresses: tuple[Any, Any]) -> None:
        self._addresses = addresses

    async def getaddrinfo(self, *_: object, **__: object) -> list[Any]:
        return [(family, socket.SOCK_DGRAM, 17, "", address) for family, address in self._addresses]


@pytest.mark.parametrize(
    ("error", "addresses", "without_source", "ours"),
    [
        (OSError(errno.EMFILE, "Too many open files"), [V4], [], True),
        (OSError(errno.ECONNREFUSED, "refused"), [V4], [], False),
        (OSError(errno.EADDRNOTAVAIL, "not available"), [V4], [], True),
        (OSError(errno.EADDRNOTAVAIL, "not available"), [V6], [V6], False),
        (OSError(errno.EADDRNOTAVAIL, "not available"), [V6, V4], [V6], True),  # both alike: told as one
        (OSError(f"Multiple exceptions: {NO_ADDRESS}, {REFUSED}"), [V6, V4], [V6], False),
        (OSError(f"Multiple exceptions: {REFUSED}, {NO_ADDRESS}"), [V6, V4], [], True),
        (OSError(f"Multiple exceptions: {REFUSED}, [Errno 24] Too many open files"), [V6, V4], [], True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), [], [], False),
    ],
)
def test_the_verdict(
    error: OSError, addresses: list[Any], without_source: list[Any], ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_lack, "_has_source", lambda family, address: (family, address) not in without_source)
    loop = cast(asyncio.AbstractEventLoop, _Resolver(*addresses))
    assert asyncio.run(own_lack.is_own_lack(error, "engine", 9, loop)) is ours


def test_a_name_that_cannot_be_looked_up_without_descriptors_is_not_the_engines_fault() -> None:
    """The resolver needs file descriptors, too, and reports their lack with misleading errors."""

    async def main() -> None:
        backend = Backend(
            BackendSettings(url="http://localhost:9", engine="openai"), LimitSettings(), asyncio.get_running_loop()
        )
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
        try:
            with pytest.raises(OutOfResources):
                await backend.pool.connect()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        with pytest.raises(EngineFault) as refused:
            await backend.pool.connect()
        assert not isinstance(refused.value, OutOfResources)

    asyncio.run(main())


IN_A_NAMESPACE = """
import asyncio, fcntl, socket, struct
from pathlib import Path
from hangup.config import BackendSettings, LimitSettings
from hangup.errors import EngineFault
from hangup.gateway.backends.backend import Backend

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40001")

async def verdict(host):
    settings = BackendSettings(url=f"http://{host}:30000", engine="openai")
    backend = Backend(settings, LimitSettings(), asyncio.get_running_loop())
    try:
        await backend.pool.connect()
        return "connected"
    except EngineFault as fault:
        return type(fault).__name__

async def main():
    verdicts = [await verdict("127.0.0.1"), await verdict("[::1]")]
    async with await asyncio.start_server(lambda r, w: None, "127.0.0.1", 30000):
        print(*verdicts, *[await verdict("127.0.0.1") for _ in range(3)], await verdict("[::1]"))

asyncio.run(main())
"""


def test_on_a_host_without_ipv6_and_with_two_ports(tmp_path: Path) -> None:
    """On a real kernel, used-up ports are our fault; an address family that the host lacks is the configuration's."""
    may = ["unshare", "-rn", "test", "-w", "/proc/sys/net/ipv4/ip_local_port_range"]
    if shutil.which("unshare") is None or subprocess.run(may, check=False, timeout=300).returncode:
        pytest.skip("no network namespaces here")
    script = tmp_path / "verdicts.py"
    script.write_text(IN_A_NAMESPACE)
    ran = subprocess.run(["unshare", "-rn", sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["EngineFault", "EngineFault", "connected", "connected", "OutOfResources", "EngineFault"]

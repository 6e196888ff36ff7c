"""A DNS server for tests: Debian's `dnsmasq`, on a free port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import dns.exception
import dns.resolver
import pytest

from support.waiting import PATIENCE_S

DNSMASQ = shutil.which("dnsmasq") or shutil.which("dnsmasq", path="/usr/sbin")
REQUIRED = os.environ.get("DNS_TESTS") == "required"
needs_dnsmasq = pytest.mark.skipif(
    DNSMASQ is None and not REQUIRED, reason="dnsmasq is not installed: apt-get install dnsmasq-base"
)

_ALONE = """--keep-in-foreground --conf-file=/dev/null --user=root --pid-file= --listen-address=127.0.0.1 --bind-interfaces
    --no-resolv --no-hosts --local=/test/""".split()


class DnsServer:
    """Serves the names under `.test` that it is given; all others there do not exist."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        assert DNSMASQ is not None, "apt-get install dnsmasq-base"
        self._hosts = folder / "hosts"
        self._hosts.touch()
        self.port = port or free_dns_port()
        while True:
            command = [DNSMASQ, f"--port={self.port}", f"--addn-hosts={self._hosts}", *_ALONE, *flags]
            self.popen = subprocess.Popen(command, stderr=subprocess.PIPE)
            if self._serves("no-such-name.test", []):
                return
            assert self.popen.stderr is not None
            said = self.popen.stderr.read()
            assert port is None and b"in use" in said, said
            self.popen.stderr.close()
            self.port = free_dns_port()  # somebody took it meanwhile

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serve(self, name: str, *addresses: str) -> None:
        """Serve these addresses, and no other names."""
        self._hosts.write_text("".join(f"{address} {name}\n" for address in addresses))
        self.popen.send_signal(signal.SIGHUP)
        assert self._serves(name, sorted(addresses))

    def pause(self) -> None:
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait(60)
        if self.popen.stderr is not None:
            self.popen.stderr.close()

    def __enter__(self) -> DnsServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _serves(self, name: str, addresses: list[str]) -> bool:
        """Wait until it does; return False if it ended."""
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], self.port
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self.popen.poll() is None:
            try:
                if sorted(resolver.resolve_name(name, lifetime=1).addresses()) == addresses:
                    return True
            except dns.resolver.NXDOMAIN:
                if not addresses:
                    return True
            except dns.exception.DNSException:
                pass  # it has not started yet
            time.sleep(0.02)
        return False


def free_dns_port() -> int:
    """Return a port that is free for UDP and TCP: dnsmasq listens on both."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = int(tcp.getsockname()[1])
            with contextlib.suppress(OSError):
                udp.bind(("127.0.0.1", port))
                return port

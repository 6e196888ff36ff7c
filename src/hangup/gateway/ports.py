"""Opens the data port and the admin port, with clear errors for what can be wrong with them."""

from __future__ import annotations

import errno
import socket
import ssl
import sys

from hangup.config import Settings
from hangup.errors import HangupError
from hangup.gateway.admin.guard import Policy
from hangup.gateway.client import sockets
from hangup.gateway.http.hosts import is_loopback
from hangup.gateway.service_manager import SERVICE_MANAGER


def listen(what: str, host: str, port: int, settings: Settings, *, reuse_port: bool = False) -> socket.socket:
    if (given := _given(what, host, settings)) is not None:
        return given
    try:
        return sockets.listen(host, port, settings.limits.client_silence_s, reuse_port=reuse_port)
    except OSError as error:
        in_use = f"\n  hint: the port is in use; choose another with --{what.replace('_', '-')}"
        hint = in_use if error.errno == errno.EADDRINUSE else ""
        raise HangupError(f"cannot listen on {host}:{port}: {error.strerror or error}{hint}") from None


def _given(what: str, host: str, settings: Settings) -> socket.socket | None:
    """Return the socket that systemd opened for this port, if it did. Who may use a port depends on its configured address, so
    that must not lie."""
    sock = SERVICE_MANAGER.take_socket(what)
    if sock is None:
        return None
    address, port = sock.getsockname()[:2]
    if is_loopback(address) != is_loopback(host):
        setting = what.replace("port", "host")
        raise HangupError(f"systemd listens on {address}:{port}, but {setting} is {host}\n  hint: set {setting} to {address}")
    return sockets.adopt(sock, settings.limits.client_silence_s)


def listen_for_workers(settings: Settings, count: int) -> list[socket.socket]:
    """Return a listening socket of the data port for each worker. Each has its own queue of new connections, and the kernel
    spreads them evenly; a queue stays open while any process has its socket, so no connection is lost with a worker."""
    if (given := _given("port", settings.host, settings)) is not None:
        return [given] + [given.dup() for _ in range(count - 1)]
    with listen("port", settings.host, settings.port, settings) as alone:  # fails if another program has the port
        port: int = alone.getsockname()[1]
    if sys.platform != "linux":  # elsewhere the kernel does not spread connections over the sockets of a port
        one = listen("port", settings.host, port, settings)
        return [one] + [one.dup() for _ in range(count - 1)]
    return [listen("port", settings.host, port, settings, reuse_port=True) for _ in range(count)]


def admin_policy(settings: Settings, listens_on: str = "") -> Policy:
    """Return who may use the admin port; raise if it listens beyond loopback without a token. A reload gives the address that
    the port listens on: the settings may name another one, but only a restart changes it."""
    token = settings.admin_token.reveal()
    for host in (settings.admin_host, listens_on or settings.admin_host):
        if not token and not is_loopback(host):
            raise HangupError(
                f"the admin port on {host} is reachable from other hosts, so it needs a token\n"
                "  hint: set admin_token_env to the name of an environment variable that holds one, or admin_token_file"
                + ("" if host == settings.admin_host else "; only a restart changes admin_host")
            )
    return Policy.of(token, settings.admin_names, settings.admin_host)


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, _passphrase)
    except (OSError, ssl.SSLError) as error:
        raise HangupError(f"cannot use tls_cert and tls_key: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _passphrase() -> str:
    """Refuse a key with a passphrase: OpenSSL would ask for it at the terminal, if there is one, and wait."""
    raise HangupError(
        "cannot use tls_key: it is encrypted, and nobody can be asked for its passphrase\n"
        "  hint: `openssl pkey -in OLD -out NEW` decrypts it; let only hangup's user read it"
    )


def url_of(address: tuple[str, int], tls: bool) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{'https' if tls else 'http'}://{host}:{address[1]}"

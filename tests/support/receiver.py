"""The other end of a webhook or of exported traces: an HTTP server that takes whatever is posted to it."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Posted(NamedTuple):
    headers: str
    body: bytes


@contextlib.contextmanager
def receiver(redirect_to: str = "") -> Iterator[tuple[str, list[Posted]]]:
    """Yield its address, and the list of what was posted, which grows. Optionally, answer with a redirect."""
    posted: list[Posted] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(Posted(str(self.headers), self.rfile.read(int(self.headers.get("content-length", 0)))))
            self.send_response(302 if redirect_to else 200)
            if redirect_to:
                self.send_header("location", redirect_to)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()

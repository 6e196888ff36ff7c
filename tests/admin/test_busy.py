"""How busy an engine is, from each source that may report it."""

from __future__ import annotations

import asyncio
import http.server
import sys
import threading
import types
from typing import Any, cast

import pytest

from hangup.config import BackendSettings
from hangup.config.load import load
from hangup.errors import ConfigError
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.busy import busy
from hangup.gateway.backends.counters import ReportedCounters


def ask(source: str, counters: ReportedCounters | None = None) -> float | None:
    backend = cast(Backend, types.SimpleNamespace(settings=BackendSettings(url="http://127.0.0.1:1", busy_from=source)))
    return asyncio.run(busy(backend, counters, 2.0))


def test_the_engines_own_metrics() -> None:
    assert ask("engine", ReportedCounters(5, 3.0)) == 1.0 and ask("engine", ReportedCounters(5, 0.0)) == 0.0
    assert ask("engine", ReportedCounters(5, None)) is None and ask("engine") is None


def test_a_dcgm_exporter() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'DCGM_FI_DEV_GPU_UTIL{gpu="0",device="a"} 80\nDCGM_FI_DEV_GPU_UTIL{gpu="1",device="b"} 20\n')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    assert ask(url) == 0.5 and ask(url + "#0") == 0.8
    server.shutdown()
    server.server_close()
    assert ask(url) is None


def test_nvml_where_the_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the calls to NVML; the GPUs are fake."""
    fake: Any = types.ModuleType("pynvml")
    fake.NVMLError = type("NVMLError", (Exception,), {})
    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetCount = lambda: 2
    fake.nvmlDeviceGetHandleByIndex = lambda number: number
    fake.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=(100, 50)[handle])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert ask("nvml") == 0.75 and ask("nvml:1") == 0.5
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert ask("nvml") is None


@pytest.mark.parametrize("source", ["gpu", "nvml:x", "file:///etc/passwd", "http://a b", ""])
def test_other_sources_are_refused_with_the_configuration(tmp_path: Any, source: str) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text(f'[[backend]]\nurl = "http://a:1"\nbusy_from = "{source}"\n')
    with pytest.raises(ConfigError, match="busy_from"):
        load(path)

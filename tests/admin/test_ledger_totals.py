"""The ledger compared with the engine's own counters, over sockets."""

from __future__ import annotations

import csv
import io
import json
import signal
from pathlib import Path
from typing import Any

from admin.test_api import admin, streaming
from admin.test_commands import as_json, hangup
from hangup.gateway.backends.adapters import ADAPTERS
from hangup.gateway.backends.counters import gpu_use, read
from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Client, ask
from support.receiver import receiver
from support.waiting import wait_until

CHAT = "/v1/chat/completions"


def get_report(gateway: Gateway, by: str = "cause") -> dict[str, Any]:
    status, report = admin(gateway, "GET", f"/api/report?by={by}")
    assert status == 200
    return dict(report)


def settled(gateway: Gateway) -> dict[str, Any]:
    """Return the report once the ledger and the engine agree, else None."""
    report = get_report(gateway)
    return report if [row["difference"] for row in report["engines"].values()] == [0] else {}


def causes(gateway: Gateway) -> dict[str, dict[str, Any]]:
    return {row["cause"]: row for row in get_report(gateway)["rows"]}


def test_every_token_is_in_the_books(tmp_path: Path) -> None:
    """For streamed, assembled and refused calls, the ledger's sums equal the engine's to the token, also after a restart."""
    with StandIn(slots=4, token_s=0.002) as engine:
        config = f"""
        ledger = "{tmp_path}/ledger.db"
        currency = "EUR"
        [limits]
        output_tokens_max = 50
        counters_interval_s = 0.1
        [[backend]]
        name = "gpu"
        url = "{engine.url}"
        price_per_hour = 36.0
        price_per_million_tokens = 100.0
        """
        with Gateway(config=config) as gateway:
            wait_until(lambda: admin(gateway, "GET", "/api/backends")[1]["backends"][0]["tokens_computed"] == 0)
            for _ in range(5):
                assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 20}).status == 200
                assert ask(gateway.address, CHAT, {"messages": [], "stream": True, "max_tokens": 7}).complete
            assert ask(gateway.address, CHAT, b"nonsense").status == 400
            report = get_report(gateway)
            gpu = report["engines"]["gpu"]
            assert gpu["computed"] == engine.stats()["tokens"] and gpu["difference"] == 0
            total = report["total"]
            assert total["tokens_delivered"] + total["tokens_wasted"] == engine.stats()["tokens"]
            assert total["engine_s"] > 0 and total["calls"] == 11
            expected = total["engine_s"] / 3600 * 36 + gpu["booked"] / 1e6 * 100
            assert abs(total["money"] - expected) < 1e-5
            assert get_report(gateway, "tenant")["rows"][0]["tenant"] == "default"
            rows = list(csv.DictReader(io.StringIO(hangup(gateway, "report", "--by", "backend", "--csv").stdout)))
            assert rows[0]["backend"] == "gpu" and int(rows[0]["calls"]) == 10
            shown = hangup(gateway, "report", "--since", "1h").stdout
            assert "COST EUR" in shown and "DIFFERENCE" in shown
            assert as_json(gateway, "report")["since_s"] == 86400
            assert hangup(gateway, "report", "--since", "yesterday").returncode == 1
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 0
        with Gateway(config=config) as again:
            assert get_report(again)["total"]["calls"] == 11


def test_those_who_left_are_booked_with_what_they_spared() -> None:
    with gateway_and_engine(token_s=0.002, answer_tokens=100) as (gateway, engine):
        for _ in range(25):  # from these it learns how long answers are
            assert ask(gateway.address, CHAT, {"messages": [], "stream": True}).complete
        with Client(gateway.address) as client:
            client.chat({"X-Request-Id": "left"}, stream=True)
            client.read_until(b'"content":" ')
        gateway.call_log("left")
        gone = causes(gateway)["client_gone"]
        assert gone["calls"] == 1 and gone["tokens_delivered"] >= 1 and 0 < gone["tokens_saved"] < 100
        with streaming(gateway, "doomed"):
            admin(gateway, "DELETE", "/api/calls/doomed")
        assert causes(gateway)["killed"]["calls"] == 1
        engine.wait_idle()
        report = wait_until(lambda: settled(gateway), what="books that agree with the engine")
        assert report["total"]["tokens_delivered"] + report["total"]["tokens_wasted"] == engine.stats()["tokens"]


def test_a_deaf_engine_raises_the_alarm_and_is_named() -> None:
    """The engine keeps computing for clients that disconnected; the log, the metric and the webhook report the alarm and its
    end."""
    with receiver() as (url, posted):
        settings = {
            "counters_interval_s": 0.1,
            "divergence_window_s": 1,
            "divergence_hold_s": 0.5,
            "alarm_webhook": f"{url}/alarm",
            "slots": 8,
        }
        with gateway_and_engine(settings, slots=8, token_s=0.002, deaf=True) as (gateway, engine):
            wait_until(lambda: "hangup_backend_tokens_computed_total" in str(gateway.metrics()))
            for at in range(8):
                with streaming(gateway, f"left-{at}"):
                    pass
            raised = wait_until(lambda: next((r for r in gateway.log() if r["event"] == "divergence_alarm_changed"), None))
            assert raised is not None
            assert (raised["state"], raised["signal"]) == ("raised", "exact")
            assert raised["suspects"]["tenants"] == ["default"] and raised["suspects"]["calls"][0]["id"].startswith("left-")
            (name,) = [row["name"] for row in admin(gateway, "GET", "/api/backends")[1]["backends"]]
            assert gateway.metrics()[f'hangup_divergence_alarm{{backend="{name}"}}'] == 1
            assert json.loads(wait_until(lambda: posted)[0].body)["backend"] == name
            assert get_report(gateway)["engines"][name]["difference"] > 100
            admin(gateway, "PUT", f"/api/backends/{name}/drain")
            engine.popen.terminate()  # the zombies end with it
            wait_until(lambda: any(json.loads(alarm.body)["state"] == "ended" for alarm in posted), what="the end of the alarm")


def test_counters_of_the_engines() -> None:
    vllm = b'# TYPE x counter\nvllm:generation_tokens_total{model="a"} 10.0\nvllm:generation_tokens_total{model="b"} 1e1\n'
    assert read(vllm + b'vllm:num_requests_running{model_name="a"} 2.0\n') == (20, 2.0)
    assert read(b"llamacpp:tokens_predicted_total 7\nllamacpp:requests_processing 0\n") == (7, 0.0)
    assert read(b"python_info 1\n") == (None, None)
    for adapter in ADAPTERS.values():
        if adapter.tokens_metric:
            assert read(f"{adapter.running_metric} 2\n{adapter.tokens_metric} 3\n".encode()) == (3, 2.0), adapter.name


def test_use_of_gpus_by_dcgm() -> None:
    page = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 90\nDCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2"} 10\n'
    assert gpu_use(page) == 0.5 and gpu_use(page, frozenset("0")) == 0.9 and gpu_use(b"") is None

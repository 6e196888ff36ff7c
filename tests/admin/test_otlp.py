"""Traces as a collector gets them, and as the engine is told of them."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

from support.processes import Gateway, StandIn
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    spans: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            spans.extend(span for r in body["resourceSpans"] for s in r["scopeSpans"] for span in s["spans"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", spans
    server.shutdown()
    server.server_close()


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {row["key"]: next(iter(row["value"].values())) for row in span["attributes"]}


def test_a_call_is_a_span_with_its_parts_in_the_clients_trace(engine: StandIn) -> None:
    with collector() as (url, got), Gateway(engine.url, otlp_endpoint=url) as gateway:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = {"model": "m", "messages": [{"content": "planted-prompt"}], "stream": True, "max_tokens": 5}
        assert ask(gateway.address, CHAT, body, headers).complete
        wait_until(lambda: len(got) >= 5, what="the spans")
        whole = got[0]
        assert (whole["traceId"], whole["parentSpanId"], whole["name"]) == (TRACE, PARENT, "chat m")
        assert attributes(whole)["gen_ai.usage.output_tokens"] == "5"
        assert attributes(whole)["hangup.outcome"] == "completed" and whole["status"] == {}
        assert [span["name"] for span in got[1:]] == ["queue", "first token", "stream", "release"]
        assert {span["parentSpanId"] for span in got[1:]} == {whole["spanId"]} and len({s["spanId"] for s in got}) == 5
        moments = [int(span[key]) for span in got[1:] for key in ("startTimeUnixNano", "endTimeUnixNano")]
        assert moments == sorted(moments) and int(whole["startTimeUnixNano"]) <= moments[0]
        assert engine.seen()[-1]["headers"]["traceparent"] == f"00-{TRACE}-{whole['spanId']}-01"
        assert "planted-prompt" not in json.dumps(got)


def test_who_left_is_an_error_and_who_is_not_sampled_is_left_alone(engine: StandIn) -> None:
    with collector() as (url, got), Gateway(engine.url, otlp_endpoint=url) as gateway:
        unsampled = f"00-{TRACE}-{PARENT}-00"
        ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}, {"traceparent": unsampled})
        assert engine.seen()[-1]["headers"]["traceparent"] == unsampled
        with Client(gateway.address) as client:
            client.chat(stream=True, ignore_eos=True)
            client.read_until(b'"content":" ')
        wait_until(lambda: got)
        assert got[0]["traceId"] != TRACE and got[0]["parentSpanId"] == ""
        assert got[0]["status"]["code"] == 2 and attributes(got[0])["error.type"] in ("fin", "reset")


def test_a_dead_collector_costs_traces_and_nothing_else(engine: StandIn) -> None:
    with Gateway(engine.url, otlp_endpoint="http://127.0.0.1:1") as gateway:
        assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}).status == 200
        wait_until(lambda: gateway.metrics()["hangup_traces_dropped_total"] == 1)

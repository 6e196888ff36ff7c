"""Traces as a collector receives them, checked with OpenTelemetry's own schema; and the trace headers that the engine gets."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from admin.test_api import streaming
from admin.test_kill import recognised
from hangup import __version__
from hangup.config import Settings
from hangup.config.secret import Secret
from hangup.errors import HangupError
from hangup.gateway.otel_environment import TraceTarget, trace_headers, trace_target
from hangup.gateway.otlp import Exporter
from hangup.gateway.tracing import TRACEPARENT
from support.processes import Gateway, Process, StandIn, gateway_and_engine
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROTOCOLS = pytest.mark.parametrize("protocol", ["http/json", "http/protobuf"])


@dataclass
class Collector:
    url: str
    spans: list[Any] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    """Parse what arrives as strictly as the official schema does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            got.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = self.rfile.read(int(self.headers["content-length"]))
            request = _decoded(self.headers["content-type"], body)
            for resource in request.resource_spans:
                got.resource = attributes(resource.resource)
                got.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got = Collector(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield got
    server.shutdown()
    server.server_close()


def _decoded(kind: str, body: bytes) -> Any:
    request = ExportTraceServiceRequest()
    if kind == "application/x-protobuf":
        request.ParseFromString(body)
        return request
    assert kind == "application/json"
    value = json.loads(body)
    for resource in value["resourceSpans"]:
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            for name in ("traceId", "spanId", "parentSpanId"):  # hexadecimal in OTLP, base64 in protobuf's own JSON
                span[name] = b64encode(bytes.fromhex(span[name])).decode()
    return ParseDict(value, request)  # refuses what is not in the schema


def attributes(span: Any) -> dict[str, Any]:
    return {row.key: _plain(row.value) for row in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@PROTOCOLS
def test_a_call_is_a_span_with_its_parts_in_the_clients_trace(engine: StandIn, protocol: str) -> None:
    with collector() as got, Gateway(engine.url, otlp_endpoint=got.url, otlp_protocol=protocol) as gateway:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        body: dict[str, Any] = {"model": "m", "messages": [{"content": "planted-prompt"}], "stream": True, "max_tokens": 5}
        body |= {"temperature": 0.5, "seed": 7}
        assert ask(gateway.address, CHAT, body, headers).complete
        wait_until(lambda: len(got.spans) >= 5, what="the spans")
        whole, *parts = got.spans
        assert (whole.trace_id.hex(), whole.parent_span_id.hex(), whole.name) == (TRACE, PARENT, "chat m")
        assert whole.kind == whole.SPAN_KIND_SERVER and whole.status.code == whole.status.STATUS_CODE_UNSET
        shown = attributes(whole)
        assert got.resource == {"service.name": "hangup", "service.version": __version__}
        assert shown["gen_ai.response.id"] and shown["gen_ai.response.model"]
        assert (
            shown.items()
            >= {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "m",
                "gen_ai.usage.output_tokens": 5,
                "gen_ai.request.max_tokens": 5,
                "gen_ai.request.temperature": 0.5,
                "gen_ai.request.seed": 7,
                "gen_ai.response.finish_reasons": ["length"],
                "http.request.method": "POST",
                "url.path": CHAT,
                "client.address": "127.0.0.1",
                "http.response.status_code": 200,
                "hangup.outcome": "completed",
            }.items()
        )
        assert "error.type" not in shown
        assert [span.name for span in parts] == ["queue", "first token", "stream", "release"]
        assert attributes(parts[-1]) == {"hangup.release": "finished"}
        assert {span.parent_span_id for span in parts} == {whole.span_id} and len({s.span_id for s in got.spans}) == 5
        moments = [moment for span in parts for moment in (span.start_time_unix_nano, span.end_time_unix_nano)]
        assert moments == sorted(moments) and whole.start_time_unix_nano <= moments[0]
        seen = engine.seen()[-1]["headers"]
        assert seen["traceparent"] == f"00-{TRACE}-{whole.span_id.hex()}-01" and seen["tracestate"] == "vendor=1"
        assert "planted-prompt" not in str(got.spans)


def test_the_release_lasts_until_the_engines_word() -> None:
    with collector() as got, gateway_and_engine({"otlp_endpoint": got.url}) as (gateway, _):
        recognised(gateway, "standin")
        with streaming(gateway, "left"):
            pass
        wait_until(lambda: len(got.spans) >= 5, what="the spans")
        whole, release = got.spans[0], got.spans[-1]
        assert whole.status.code == whole.status.STATUS_CODE_UNSET and attributes(whole)["hangup.outcome"] == "client_gone"
        assert attributes(release) == {"hangup.release": "verified"}
        assert release.start_time_unix_nano == whole.end_time_unix_nano < release.end_time_unix_nano


def test_a_zombie_is_told_of_when_no_more_is_waited_for() -> None:
    settings = {"release_grace_s": 0.2, "trace_release_s": 1.0}
    with collector() as got, gateway_and_engine({"otlp_endpoint": got.url, **settings}, deaf=True) as (gateway, _):
        recognised(gateway, "standin")
        with streaming(gateway, "deaf"):
            pass
        wait_until(lambda: len(got.spans) >= 5, what="the spans")
        assert attributes(got.spans[-1]) == {"hangup.release": "zombie"}


def test_what_is_not_sampled_is_left_alone_and_what_is_no_inference_is_not_called_so(engine: StandIn) -> None:
    with collector() as got, Gateway(engine.url, otlp_endpoint=got.url) as gateway:
        unsampled = f"00-{TRACE}-{PARENT}-00"
        ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}, {"traceparent": unsampled})
        assert engine.seen()[-1]["headers"]["traceparent"] == unsampled
        with Client(gateway.address) as noise:  # what cannot be read begins no trace
            noise.send(b"no HTTP at all\r\n\r\n")
            assert noise.read_answer().status == 400
        ask(gateway.address, "/nowhere", {})
        wait_until(lambda: got.spans)
        (whole,) = got.spans
        assert whole.trace_id.hex() != TRACE and whole.parent_span_id == b"" and whole.name == "POST"
        assert not any(name.startswith("gen_ai.") for name in attributes(whole))


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-01-more", True),
        (f"00-{TRACE}-{PARENT}-01-more", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
    ],
)
def test_the_trace_context_is_read_as_w3c_wants_it(given: str, valid: bool) -> None:
    assert bool(TRACEPARENT.fullmatch(given.encode())) == valid


def test_the_collectors_key_comes_from_the_environment(engine: StandIn) -> None:
    key = {"OTEL_EXPORTER_OTLP_HEADERS": "X-Api-Key=s3cret, tenant=ops"}
    with collector() as got, Gateway(engine.url, otlp_endpoint=got.url, env=key) as gateway:
        ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2})
        sent = wait_until(lambda: got.headers)[0]
        assert (sent["x-api-key"], sent["tenant"]) == ("s3cret", "ops")
    with pytest.raises(HangupError, match="otlp_headers: expected"):
        Exporter(TraceTarget("http://127.0.0.1:1"), "nonsense", 1.0)


def test_a_dead_collector_costs_traces_and_nothing_else(engine: StandIn) -> None:
    with Gateway(engine.url, otlp_endpoint="http://127.0.0.1:1") as gateway:
        assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}).status == 200
        wait_until(lambda: gateway.metrics()["hangup_traces_dropped_total"] == 1)


def test_off_there_is_nothing_of_it(engine: StandIn) -> None:
    """Without a collector there is no thread, no OpenTelemetry module, and no trace header to the engine."""
    with Gateway(engine.url) as gateway:
        ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2})
        assert "traceparent" not in engine.seen()[-1]["headers"]
        ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert engine.seen()[-1]["headers"]["traceparent"] == f"00-{TRACE}-{PARENT}-01"
    loaded = (
        "import sys, hangup.gateway.server; print(any(name.startswith(('opentelemetry', 'google')) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    with pytest.raises(HangupError, match=r"hangup\[otel\]"):
        Exporter(TraceTarget("http://127.0.0.1:1", "http/protobuf"), "", 1.0)
    with Process("serve", "--port", "0", "--admin-port", "0", "--otlp-protocol", "grpc") as refused:
        assert refused.wait() != 0 and "http/protobuf" in "\n".join(refused.stderr_lines)


@PROTOCOLS
def test_the_standard_variables_suffice(engine: StandIn, protocol: str) -> None:
    with collector() as got:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": got.url + "/",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=a%20b",
            "OTEL_SERVICE_NAME": "edge",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=unused,deployment.environment.name=prod,k8s.pod.name=p%2C1",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0",
        }
        with Gateway(engine.url, env=env) as gateway:
            ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2})  # an ordinary call, of which none is sampled
            ask(gateway.address, "/nowhere", {})  # a strange one
            wait_until(lambda: got.spans)
            assert [span.name for span in got.spans] == ["POST"] and got.headers[0]["x-key"] == "a b"
        assert got.resource == {
            "service.name": "edge",
            "service.version": __version__,
            "deployment.environment.name": "prod",
            "k8s.pod.name": "p,1",
        }


def test_variables_meant_for_other_programs_do_not_keep_it_from_starting(engine: StandIn) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with Gateway(engine.url, env=env) as gateway:
        assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}).status == 200
        (line,) = wait_until(lambda: [row for row in gateway.log() if row["event"] == "traces_disabled"])
        assert "OTEL_EXPORTER_OTLP_PROTOCOL" in line["error"] and "grpc" in line["error"]


def test_how_the_variables_are_read() -> None:
    everything = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/base"}
    assert trace_target("", "http/json", {}).url == ""
    assert trace_target("", "http/json", everything).url == "http://c:4318/base/v1/traces"
    alone = everything | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/exactly"}
    assert trace_target("", "http/json", alone).url == "http://t/exactly"
    own = trace_target("http://own/", "http/json", alone | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SDK_DISABLED": "true"})
    assert (own.url, own.protocol) == ("http://own/v1/traces", "http/json"), "the configuration comes first"
    for off in ({"OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_SAMPLER": "always_off"}):
        assert trace_target("", "http/json", everything | off).url == ""
    assert trace_target("", "http/json", everything | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1500"}).timeout_s == 1.5
    ratio = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    assert trace_target("", "http/json", ratio).share == 0.25 and trace_target("", "http/json", {}).share is None
    for wrong in ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, ratio | {"OTEL_TRACES_SAMPLER_ARG": "2"}):
        with pytest.raises(HangupError, match="expected a number"):
            trace_target("", "http/json", everything | wrong)


def test_configured_headers_come_before_the_environment() -> None:
    for_traces = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "c=d"}
    plain = Settings(otlp_headers=Secret("a=b"))
    assert (trace_headers(plain, {}), trace_headers(plain, for_traces)) == ("a=b", "c=d")
    own: list[dict[str, Any]] = [
        {"otlp_endpoint": "http://own"},
        {"otlp_headers_file": "/f"},
        {"otlp_headers_command": "c"},
        {"otlp_headers_env": "OWN"},
    ]
    for given in own:
        assert trace_headers(dataclasses.replace(plain, **given), for_traces) == "a=b"
    assert trace_headers(Settings(otlp_endpoint="http://own"), for_traces) == "c=d"


def test_an_embedding_names_its_model_and_has_no_stream(engine: StandIn) -> None:
    with collector() as got, Gateway(engine.url, otlp_endpoint=got.url) as gateway:
        assert ask(gateway.address, "/v1/embeddings", {"model": "e5", "input": "planted-prompt"}).status == 200
        wait_until(lambda: len(got.spans) >= 4, what="the spans")
        whole, *parts = got.spans
        assert whole.name == "embeddings e5" and attributes(whole)["gen_ai.request.model"] == "e5"
        assert [part.name for part in parts] == ["queue", "answer", "release"]
        host, _, port = engine.url.removeprefix("http://").partition(":")
        assert attributes(parts[1]) == {"server.address": host, "server.port": int(port), "hangup.attempts": 1}


@pytest.mark.parametrize(
    ("path", "stream", "reasons"),
    [
        (CHAT, False, ["length"]),
        ("/v1/messages", True, ["max_tokens"]),
        ("/v1/messages", False, ["max_tokens"]),
        ("/v1/responses", True, ["max_output_tokens"]),
        ("/v1/responses", False, ["max_output_tokens"]),
    ],
)
def test_what_is_known_of_the_answer(engine: StandIn, path: str, stream: bool, reasons: list[str]) -> None:
    asked = {"input": "x", "max_output_tokens": 16} if path == "/v1/responses" else {"messages": [], "max_tokens": 3}
    with collector() as got, Gateway(engine.url, otlp_endpoint=got.url) as gateway:
        assert ask(gateway.address, path, asked | {"model": "m", "stream": stream}).complete
        wait_until(lambda: got.spans)
        shown = attributes(got.spans[0])
        assert shown["gen_ai.response.finish_reasons"] == reasons and shown["gen_ai.response.id"]

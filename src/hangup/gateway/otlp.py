"""Exports spans to a collector with OTLP over HTTP, as JSON, or as protobuf with `hangup[otel]`."""

from __future__ import annotations

import importlib
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson

from hangup import __version__
from hangup.errors import HangupError
from hangup.gateway.otel_environment import TraceSettings, TraceTarget, as_attributes, trace_headers, trace_target
from hangup.no_redirects import open_url

Encode = Callable[[list[dict[str, Any]]], bytes]


class Exporter:
    """A client of one collector. The constructor raises `HangupError` if a package is missing or the headers are invalid."""

    def __init__(self, target: TraceTarget, headers: str, timeout_s: float) -> None:
        self._url = target.url
        is_protobuf = target.protocol == "http/protobuf"
        resource = as_attributes(target.resource)
        self._encode = _protobuf(resource) if is_protobuf else partial(_json, resource)
        self._kind = {"content-type": f"application/{'x-protobuf' if is_protobuf else 'json'}"}
        self._headers = read_headers(headers)  # of the collector's operator, such as a key
        self.timeout_s = target.timeout_s or timeout_s
        self.share = target.share  # of ordinary calls; None: as configured

    def send(self, spans: list[dict[str, Any]]) -> None:
        """Send the spans; raise OSError or ValueError if the collector does not accept them."""
        request = urllib.request.Request(self._url, self._encode(spans), self._kind | self._headers)  # noqa: S310 - from the configuration
        with open_url(request, timeout=self.timeout_s):
            pass


def configured_exporter(settings: TraceSettings, environment: Mapping[str, str], timeout_s: float) -> Exporter | None:
    """Return the exporter for the settings `otlp_…` and the variables OTEL_…; None if they name no collector."""
    target = trace_target(settings.otlp_endpoint, settings.otlp_protocol, environment)
    return Exporter(target, trace_headers(settings, environment), timeout_s) if target.url else None


def read_headers(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`, the format of OTEL_EXPORTER_OTLP_HEADERS."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise HangupError("otlp_headers: expected name=value,name=value")
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}


def _json(resource: list[dict[str, Any]], spans: list[dict[str, Any]]) -> bytes:
    scope = {"scope": {"name": "hangup", "version": __version__}, "spans": spans}
    return orjson.dumps({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]})


def _protobuf(attributes: list[dict[str, Any]]) -> Encode:
    try:
        service = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    except ImportError:
        raise HangupError("otlp_protocol http/protobuf needs an extra package\n  hint: pip install 'hangup[otel]'") from None

    def encode(spans: list[dict[str, Any]]) -> bytes:
        request = service.ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        _attributes(resource.resource, attributes)
        scope = resource.scope_spans.add()
        scope.scope.name, scope.scope.version = "hangup", __version__
        for span in spans:
            _fill(scope.spans.add(), span)
        return bytes(request.SerializeToString())

    return encode


def _fill(message: Any, span: dict[str, Any]) -> None:
    """Copy a JSON span into a protobuf span, in which ids are bytes and times are numbers."""
    message.trace_id, message.span_id = bytes.fromhex(span["traceId"]), bytes.fromhex(span["spanId"])
    message.parent_span_id = bytes.fromhex(span["parentSpanId"])
    message.name, message.kind = span["name"], span["kind"]
    message.start_time_unix_nano, message.end_time_unix_nano = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    _attributes(message, span.get("attributes", []))
    if status := span.get("status"):
        message.status.code, message.status.message = status["code"], status["message"]


def _attributes(message: Any, attributes: list[dict[str, Any]]) -> None:
    for attribute in attributes:
        _set(message.attributes.add(key=attribute["key"]).value, attribute["value"])


def _set(message: Any, given: dict[str, Any]) -> None:
    """Copy a value from JSON, in which the name of the only field is its type."""
    ((kind, value),) = given.items()
    match kind:
        case "intValue":
            message.int_value = int(value)
        case "doubleValue":
            message.double_value = value
        case "boolValue":
            message.bool_value = value
        case "arrayValue":
            for each in value["values"]:
                _set(message.array_value.values.add(), each)
        case _:
            message.string_value = value

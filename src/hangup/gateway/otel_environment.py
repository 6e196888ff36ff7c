"""Reads OpenTelemetry's standard environment variables. What the configuration sets itself comes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from hangup import __version__
from hangup.config.secret import Secret
from hangup.errors import HangupError

_TRACES_PATH = "/v1/traces"
_PROTOCOLS = ("http/json", "http/protobuf")
_SAMPLERS_OFF = ("always_off", "parentbased_always_off")
_SAMPLERS_BY_RATIO = ("traceidratio", "parentbased_traceidratio")


class TraceSettings(Protocol):
    """The settings that say where the collector is and where its headers come from."""

    @property
    def otlp_endpoint(self) -> str: ...
    @property
    def otlp_protocol(self) -> str: ...
    @property
    def otlp_headers_env(self) -> str: ...
    @property
    def otlp_headers_file(self) -> str: ...
    @property
    def otlp_headers_command(self) -> str: ...
    @property
    def otlp_headers(self) -> Secret: ...


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """Where traces go, and what they say of this process."""

    url: str  # empty: nowhere
    protocol: str = "http/json"
    timeout_s: float | None = None  # None: as configured
    share: float | None = None  # of ordinary calls; None: as configured
    resource: dict[str, str] = field(default_factory=dict)


def trace_target(endpoint: str, protocol: str, environment: Mapping[str, str]) -> TraceTarget:
    """Combine the settings `otlp_…` with the variables OTEL_…; raise a `HangupError` if they cannot be used."""

    def variable(name: str) -> str:
        """Return a variable of the exporter; one for traces alone comes before the one for all signals."""
        return environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "")

    url = endpoint.rstrip("/") + _TRACES_PATH if endpoint else ""
    if not url and not _is_off(environment):
        everything = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        url = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")  # used as it is
        url = url or (everything.rstrip("/") + _TRACES_PATH if everything else "")
        protocol = variable("PROTOCOL") or protocol
        if url and protocol not in _PROTOCOLS:
            raise HangupError(f"OTEL_EXPORTER_OTLP_PROTOCOL: expected one of {', '.join(_PROTOCOLS)}, got {protocol!r}")
    timeout = variable("TIMEOUT")
    return TraceTarget(
        url,
        protocol,
        _number("OTEL_EXPORTER_OTLP_TIMEOUT", timeout) / 1000 if timeout else None,
        _share(environment),
        resource(environment),
    )


def trace_headers(settings: TraceSettings, environment: Mapping[str, str]) -> str:
    """Return the headers for the collector: configured ones, or else those for traces alone before those for all signals."""
    named = settings.otlp_headers_env != "OTEL_EXPORTER_OTLP_HEADERS"
    configured = settings.otlp_endpoint or settings.otlp_headers_file or settings.otlp_headers_command or named
    for_all, for_traces = settings.otlp_headers.reveal(), environment.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "")
    return (for_all or for_traces) if configured else (for_traces or for_all)


def _is_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    sampler = environment.get("OTEL_TRACES_SAMPLER", "")
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "") == "none" or sampler in _SAMPLERS_OFF


def _share(environment: Mapping[str, str]) -> float | None:
    if environment.get("OTEL_TRACES_SAMPLER", "") not in _SAMPLERS_BY_RATIO:
        return None
    given = environment.get("OTEL_TRACES_SAMPLER_ARG", "")
    share = _number("OTEL_TRACES_SAMPLER_ARG", given) if given else 1.0
    if not 0 <= share <= 1:
        raise HangupError(f"OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got {given!r}")
    return share


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise HangupError(f"{name}: expected a number, got {text!r}") from None


def resource(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what describes this process: OTEL_RESOURCE_ATTRIBUTES, and a name from OTEL_SERVICE_NAME."""
    pairs = (pair.partition("=") for pair in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if "=" in pair)
    given = {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}
    name = environment.get("OTEL_SERVICE_NAME") or given.get("service.name") or "hangup"
    return {"service.version": __version__, **given, "service.name": name}


def as_attributes(resource: dict[str, str]) -> list[dict[str, Any]]:
    """Return the resource's attributes in OTLP's JSON format."""
    return [{"key": name, "value": {"stringValue": value}} for name, value in resource.items()]

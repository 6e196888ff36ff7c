"""Every setting of hangup, with its default, its bounds and its purpose.

Settings are defined here and in `limits`, and nowhere else: the TOML keys, the environment variables (`HANGUP_` + name), the
command-line flags, `hangup config show` and docs/configuration.md are all derived from these dataclasses. Names end in their
unit (`_s` seconds, `_bytes`, `_tokens`); a limit on an amount ends in `_max`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hangup.config.limits import LimitSettings
from hangup.config.secret import Secret
from hangup.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """One address of an engine."""

    url: str = setting(
        "",
        "http:// or https:// address; a trailing /v1 is ignored. dns+http:// or dns+https:// makes a backend of every address"
        " behind the name, and follows changes.",
    )
    name: str = setting("", "Short name in logs and metrics; empty: host:port.")
    engine: str = setting("auto", "Kind of engine; `hangup engines` lists them. auto: hangup detects it.")
    slots: int = setting(0, "Maximum calls sent to it at a time; 0: the top-level slots applies.", least=0)
    kv_tokens: int = setting(0, "Size in tokens of its KV cache, which calls share; 0: unknown.", least=0)
    weight: float = setting(1.0, "Share of the load, relative to the other backends.", least=0.01)
    models: tuple[str, ...] = setting(
        (), "Models that it serves, and no others; * matches any text. Empty: hangup asks it for its list."
    )
    apis: tuple[str, ...] = setting((), "APIs that it speaks, and no others; empty: those that are usual for its engine.")
    api_key_env: str = setting("", "Environment variable with the key to send to it instead of the client's.")
    api_key_file: str = setting("", "File with that key; a reload reads it again.")
    api_key_command: str = setting("", "Command that prints that key, without a shell; a reload runs it again.")
    client_key: str = setting(
        "auto",
        "Without a key of its own: whether it gets the key of a client. auto: if all such backends belong to one party.",
        choices=("auto", "pass", "drop"),
    )
    health_path: str = setting("/health", "Path of the active health check; empty turns it off.")
    price_per_hour: float = setting(0.0, "Cost per hour, GPUs included; for the ledger.", least=0)
    price_per_million_tokens: float = setting(0.0, "Cost per million output tokens; for the ledger.", least=0)
    busy_from: str = setting(
        "engine",
        "Source of its utilisation for the divergence alarm: engine (its own metrics), nvml or nvml:0,1 (GPUs of this machine, "
        "hangup[nvidia]), or the URL of a DCGM exporter's metrics, with #0,1 for some of its GPUs.",
    )
    ca_file: str = setting("", "PEM file with the certificate authorities to trust for https; empty: the system's.")
    tls_verify: bool = setting(True, "Verify the certificate of an https backend.")
    shared: bool = setting(False, "Other clients use this engine, too: hangup then detects no zombies by its counts.")
    pin_slots: bool = setting(True, "Give each call its own slot where the engine allows it, so that verification is exact.")
    abort_again: bool = setting(True, "Repeat the abort for a zombie.")
    quarantine: bool = setting(True, "Quarantine it: send it no new calls while it runs a zombie that aborts did not stop.")
    restart_command: str = setting(
        "", "Command that restarts it from quarantine. No shell; {name}, {url}, {host} and {port} are filled in. Empty: never."
    )
    restart_force: bool = setting(
        False, "Restart it despite live calls, after restart_wait_s; otherwise when the last one is done."
    )
    canary: bool = setting(True, "After a quarantine, it must answer a test call before it gets calls again.")
    spawn: str = setting(
        "", "Command that runs the engine as a child process of hangup, which restarts it. {port} is the url's."
    )
    spawn_log: str = setting("", "File to which the output of that process is appended; empty: hangup's stderr.")
    key: Secret = field(default=Secret(), repr=False, compare=False)  # read from its source; a new one makes no new backend
    hidden_variables: frozenset[str] = field(default=frozenset(), repr=False, compare=False)  # for its engine and commands


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredBackend(BackendSettings):
    """A backend at one of the addresses behind a name; made from DNS, never configured."""

    address: str = ""  # the IP address to connect to; `url` has the name
    warm_up: bool = field(default=False, compare=False)  # it must answer a canary first


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSettings:
    """A group of clients known by their API keys."""

    name: str = setting("", "Its name in logs and metrics.")
    key_sha256: list[str] = setting([], "SHA-256 digests (hex) of its API keys; `hangup key new` makes a pair.")
    weight: float = setting(1.0, "Share of the engines' tokens, relative to the other tenants.", least=0.01)
    priority: str = setting("normal", "Calls of tenants with a higher priority go first.", choices=("high", "normal", "low"))
    concurrency_max: int = setting(0, "Maximum calls in progress, including waiting ones; 0: no limit.", least=0)
    tokens_per_minute: int = setting(0, "Maximum tokens per minute, prompts and answers together; 0: no limit.", least=0)
    limits: dict[str, Any] = setting({}, "Per-call limits of this tenant.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Limits of a built-in path, or permission to pass another path through."""

    path: str = setting("", "Exact path; a path that hangup does not know is passed through. A final * matches any rest.")
    methods: list[str] = setting(["GET", "POST"], "Methods allowed on a passed-through path.")
    websocket: bool = setting(False, "Whether WebSockets may be opened on a passed-through path.")
    limits: dict[str, Any] = setting({}, "Per-call limits of this route.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasSettings:
    """Another name for a model."""

    name: str = setting("", "Name that clients use.")
    model: str = setting("", "Name of the model at the backend.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration."""

    host: str = setting("127.0.0.1", "Address of the data port.")
    port: int = setting(8080, "The data port; 0: any free port.", least=0, most=65535)
    workers: int = setting(
        1,
        "Processes that serve the data port together; auto, or 0: one for each core. `hangup docs scale` says what they share.",
        least=0,
        most=256,
        words={"auto": 0},
    )
    admin_host: str = setting("127.0.0.1", "Address of the admin port.")
    admin_port: int = setting(8081, "The admin port; 0: any free port.", least=0, most=65535)
    admin_token_env: str = setting(
        "", "Environment variable with the token that the admin port requires; mandatory if admin_host is not loopback."
    )
    admin_token_file: str = setting("", "File with that token; a reload reads it again.")
    admin_token_command: str = setting("", "Command that prints that token, without a shell; a reload runs it again.")
    admin_names: str = setting(
        "", "Host names, separated by commas, that the admin port answers to besides localhost, admin_host and IP addresses."
    )
    allowed_hosts: str = setting(
        "",
        "Host names, separated by commas, that the data port answers to while no tenant is configured; * matches all. Empty: "
        "on loopback without TLS, names that no web site can have (against DNS rebinding); elsewhere any.",
    )
    dns_server: str = setting(
        "", "DNS server for dns+ backends: an IP address, with :port if that is not 53. Empty: the system's (/etc/resolv.conf)."
    )
    tls_cert: str = setting("", "PEM certificate chain for the data port; empty means plain HTTP.")
    tls_key: str = setting("", "PEM private key for tls_cert.")
    config_watch_s: float = setting(
        0.0,
        "Look this often whether the configuration file, or a file of a key or certificate that it names, changed, and "
        "reload it; 0: only on SIGHUP.",
        least=0,
    )
    slots: int = setting(
        0, "Maximum calls sent to a backend at a time; 0: hangup learns it from the time to first token.", least=0
    )
    half_close: str = setting(
        "hangup",
        "A client's half-close (FIN after its request): hangup ends the call, allow answers it.",
        choices=("hangup", "allow"),
    )
    websocket_origins: str = setting(
        "",
        "Origins (https://page.example), separated by commas, whose pages may open WebSockets without a key; * allows all. "
        "Programs and pages of the same host always may.",
    )
    cors: str = setting(
        "engine",
        "Who decides whether pages of other sites may call (CORS): engine forwards their preflights to it; none refuses them.",
        choices=("engine", "none"),
    )
    assemble: bool = setting(
        True,
        "Ask engines to stream non-streaming calls and assemble the answer, so that hangup can cancel it at any token.",
    )
    heartbeat_s: float = setting(
        0.0, "Send an SSE comment this often before the first token; 0 is off, since it fixes the status to 200.", least=0
    )
    log: str = setting("-", "Target of the log: - for stdout, a file path, or none.")
    log_format: str = setting(
        "auto",
        "Lines of the log: json, text for people, or auto: text on a terminal, else json.",
        choices=("auto", "json", "text"),
    )
    ledger: str = setting(
        "",
        "SQLite file for the ledger, which `hangup report` reads, or postgresql://… for several hosts; "
        "empty keeps it in memory.",
    )
    ledger_password_env: str = setting("", "Environment variable with the password for that server.")
    ledger_password_file: str = setting("", "File with this password; a reload reads it again.")
    ledger_password_command: str = setting("", "Command that prints it, without a shell; a reload runs it again.")
    ledger_days: float = setting(90.0, "How long the ledger is kept.", least=0.01)
    jobs: str = setting(
        "auto",
        "SQLite file for jobs and their files, or postgresql://… for several hosts (needs hangup[postgresql]). "
        "auto: jobs-PORT.sqlite in the user's state folder; none turns jobs off; "
        "provider forwards them to a hosted API and follows them there.",
    )
    jobs_password_env: str = setting("", "Environment variable with the password for that server.")
    jobs_password_file: str = setting("", "File with this password; a reload reads it again.")
    jobs_password_command: str = setting("", "Command that prints it, without a shell; a reload runs it again.")
    jobs_days: float = setting(30.0, "How long ended jobs and files are kept.", least=0.01)
    shared_state: str = setting(
        "",
        "Redis or Valkey server through which gateways on several hosts share slots and concurrency_max: redis://… or "
        "rediss://…, with +sentinel or +cluster after the scheme (needs hangup[redis]). Empty: nothing is shared.",
    )
    shared_state_password_env: str = setting("", "Environment variable with the password for that server.")
    shared_state_password_file: str = setting("", "File with this password; a reload reads it again.")
    shared_state_password_command: str = setting("", "Command that prints it, without a shell; a reload runs it again.")
    shared_state_name: str = setting("hangup", "Gateways with the same name on the same server share their state.")
    shared_state_required: bool = setting(
        False, "Exit if shared_state cannot be used at the start; otherwise hangup serves alone until it can."
    )
    shared_state_alone_share: float = setting(
        0.5,
        "Share of slots and concurrency_max that a gateway, with all its workers, uses if it starts while shared_state "
        "cannot be reached.",
        least=0.01,
        most=1,
    )
    peer_host: str = setting(
        "",
        "Address of this host at which the gateways on the same shared_state can ask whether this one lives. Empty: the "
        "address that it uses to reach the store.",
    )
    peer_port: int = setting(0, "Port for that; 0: any free port. N workers use the 2 N ports from it.", least=0, most=65535)
    currency: str = setting("USD", "Currency of the backends' prices.")
    otlp_endpoint: str = setting(
        "", "OpenTelemetry collector (OTLP/HTTP) for traces, such as http://127.0.0.1:4318; empty is off."
    )
    otlp_protocol: str = setting(
        "http/json",
        "Format of the traces; every collector accepts protobuf, which is smaller and needs hangup[otel].",
        choices=("http/json", "http/protobuf"),
    )
    otlp_headers_env: str = setting(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Environment variable with headers for the collector (name=value,name=value), such as a key.",
    )
    otlp_headers_file: str = setting("", "File with these headers; a reload reads it again.")
    otlp_headers_command: str = setting("", "Command that prints these headers, without a shell; a reload runs it again.")
    alarm_webhook: str = setting("", "URL that gets a POST with JSON when a divergence alarm starts and when it ends.")
    limits: LimitSettings = field(default_factory=LimitSettings, metadata={"doc": "Hard limits."})
    backend: tuple[BackendSettings, ...] = field(default=(), metadata={"doc": "The backends."})
    tenant: tuple[TenantSettings, ...] = field(default=(), metadata={"doc": "The tenants; without any, clients need no key."})
    route: tuple[RouteSettings, ...] = field(default=(), metadata={"doc": "Limits and permissions by path."})
    alias: tuple[AliasSettings, ...] = field(default=(), metadata={"doc": "Other names for models."})
    admin_token: Secret = field(default=Secret(), repr=False, compare=False)  # read from its source
    otlp_headers: Secret = field(default=Secret(), repr=False, compare=False)
    ledger_password: Secret = field(default=Secret(), repr=False, compare=False)
    jobs_password: Secret = field(default=Secret(), repr=False, compare=False)
    shared_state_password: Secret = field(default=Secret(), repr=False, compare=False)


LISTS = {"backend": BackendSettings, "tenant": TenantSettings, "route": RouteSettings, "alias": AliasSettings}
# The APIs, by the names before the dot in logs and metrics.
APIS = ("openai", "anthropic", "ollama", "llamacpp", "tgi", "sglang")


def scalar_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """Return the plain settings of a section, without its sub-tables."""
    return [f for f in dataclasses.fields(cls) if "least" in f.metadata]


def per_call_limits() -> frozenset[str]:
    """Return the names of the limits that a route or a tenant may set."""
    return frozenset(f.name for f in dataclasses.fields(LimitSettings) if f.metadata["per_call"])

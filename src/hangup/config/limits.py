"""Every limit, grouped by the component that enforces it; `LimitSettings` has all of them under flat names for users.

A component takes the group that it uses, so that its signature says which limits it enforces. Settings are defined only in
this file and in `schema`. Only `LimitSettings` and `AdmissionLimits` are instantiated; the other groups have no generated
methods, because those would double the time of an import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hangup.config.setting import setting


def limit(default: float, doc: str, *, least: float = 0, most: float | None = None) -> Any:
    """Define a limit of the whole gateway."""
    return setting(default, doc, least=least, most=most)


def cap(default: float, doc: str, *, least: float = 1, most: float | None = None) -> Any:
    """Define a limit on one call, which a route or a tenant may override."""
    return setting(default, doc, least=least, most=most, per_call=True)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CallLimits:
    """Limits on one call. A route or a tenant may override them."""

    output_tokens_default: int = cap(32768, "Maximum output tokens per choice when the client names no maximum.")
    output_tokens_max: int = cap(32768, "Maximum output tokens per choice; hangup ends a longer answer there.")
    choices_max: int = cap(32, "Maximum answers in one call: n or best_of, times the number of prompts.")
    total_s: float = cap(600.0, "Timeout for a whole call, from its first byte to its end.", least=0.01)
    first_token_s: float = cap(120.0, "Timeout for the first token, from sending the call to the engine.", least=0.01)
    gap_s: float = cap(60.0, "Timeout between two tokens; comments, pings and empty events do not count.", least=0.01)
    queue_s: float = cap(10.0, "Timeout in the queue; a call that would have to wait longer is refused at once.", least=0)
    body_bytes_max: int = cap(16 * 1024 * 1024, "Largest request body.", least=1024)
    media_bytes_max: int = cap(
        32 * 1024 * 1024, "Largest request body of calls with audio or image files, including the form around them.", least=1024
    )
    event_bytes_max: int = cap(4 * 1024 * 1024, "Largest single event of an answer.", least=1024)
    answer_bytes_max: int = cap(
        64 * 1024 * 1024,
        "Largest answer that hangup assembles from an engine's stream, or holds for a job.",
        least=1024,
    )
    websocket_s: float = cap(3600.0, "Timeout for a whole WebSocket.", least=0.01)
    websocket_idle_s: float = cap(300.0, "Timeout for a WebSocket that is silent in both directions.", least=0.01)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RequestLimits:
    """Limits on requests from clients, whichever connection they come over."""

    body_s: float = limit(60.0, "Timeout for a whole request body.", least=0.1)
    upload_s: float = limit(600.0, "Timeout for uploading a file, also of audio and image calls.", least=1)
    name_bytes_max: int = limit(
        1024, "Longest name of a model in a request; names are kept in the log, the ledger and the list of calls.", least=16
    )
    json_elements_max: int = limit(
        100_000, "Maximum values in a JSON body, so that parsing one cannot delay other calls.", least=100
    )
    json_depth_max: int = limit(200, "Maximum levels of nesting in a JSON body; a deeper one is refused.", least=8, most=250)
    media_held_bytes_max: int = limit(
        1024**3,
        "Maximum bytes of bodies with audio or image files in memory; one more call with a file is refused.",
        least=1024,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClientLimits:
    """Limits on a client's connection."""

    connections_max: int = limit(
        20_000, "Maximum client connections at a time, including TLS handshakes; one more gets 503.", least=1
    )
    header_s: float = limit(10.0, "Timeout for a request's headers to arrive.", least=0.1)
    header_bytes_max: int = limit(32 * 1024, "Largest request head, request line included.", least=1024)
    header_count_max: int = limit(128, "Maximum header lines in a request.", least=8)
    url_bytes_max: int = limit(8 * 1024, "Longest request target.", least=64)
    bodies_bytes_max: int = limit(
        512 * 1024 * 1024, "Maximum bytes of incomplete request bodies, of all clients together.", least=1024
    )
    body_idle_s: float = limit(30.0, "Timeout between two reads of a request body.", least=0.1)
    idle_s: float = limit(75.0, "Keep-alive timeout: how long a client's connection may be idle between two calls.", least=0.1)
    pipelined_bytes_max: int = limit(
        64 * 1024,
        "Maximum bytes kept of requests pipelined behind a running call; with more, the connection closes after the call.",
    )
    client_silence_s: float = limit(
        15.0, "Timeout after which a client whose host no longer answers TCP counts as gone.", least=1
    )
    write_stall_s: float = limit(30.0, "Timeout after which a client that does not read counts as gone.", least=0.1)
    linger_s: float = limit(2.0, "How long a refused client may take to read the error; hangup discards its request meanwhile.")
    websocket_close_s: float = limit(5.0, "Timeout for the answer to a WebSocket's Close frame.", least=0.01)
    websocket_buffer_bytes_max: int = limit(
        256 * 1024,
        "Maximum bytes from a WebSocket client that its engine has not read yet; then hangup stops reading from the client.",
        least=1,
    )
    admin_connections_max: int = limit(
        64, "Maximum connections to the admin port at a time; one more is closed at once. Idle ones are closed.", least=4
    )


class TrafficLimits(ClientLimits, RequestLimits, CallLimits):
    """All limits of a port for clients: connections, requests, calls."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class EngineLimits:
    """Limits on a connection to an engine."""

    connect_s: float = limit(3.0, "Timeout for connecting to a backend, including TLS.", least=0.05)
    engine_idle_s: float = limit(
        4.0, "How long an unused backend connection is kept; below the 5 s after which uvicorn-based engines close theirs."
    )
    engine_idle_connections_max: int = limit(512, "Maximum unused connections kept per backend.")
    engine_header_bytes_max: int = limit(64 * 1024, "Largest response head taken from an engine.", least=1024)
    engine_receive_bytes_max: int = limit(
        128 * 1024,
        "Receive buffer per engine connection: how far an engine can run ahead of a client that does not read.",
        least=4096,
    )
    step_slo_s: float = limit(
        0.1,
        "Target time per token of a backend with learned slots; it gets fewer calls when it is slower than this and than twice"
        " its best time.",
        least=0.001,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FailoverLimits:
    """Limits on retries of a call at other backends."""

    engine_responses_max: int = limit(
        10_000, "Maximum stored responses (/v1/responses/{id}) for which hangup remembers the backend.", least=0
    )
    failover_max: int = limit(2, "Maximum retries at other backends when one fails before its first byte.")
    refusals_max: int = limit(
        8, "Maximum attempts of a call that engines refuse (429, 529, 503 with Retry-After) before its client gets the refusal."
    )
    refusal_pause_s_max: float = limit(60, "Longest pause for a backend that refuses calls, whatever Retry-After it sends.")
    model_refused_s: float = limit(
        30.0, "After a backend answered 404 to a call: how long hangup prefers others for the same model and API."
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AdmissionLimits(CallLimits):
    """Limits on the queue, and its order."""

    queue_depth_max: int = limit(1024, "Maximum calls in the queue; when it is full, one call is refused.")
    queue_bytes_max: int = limit(
        256 * 1024 * 1024, "Maximum bytes of request bodies in the queue; their parsed form takes about as much again."
    )
    lifo_after_s: float = limit(
        2.0,
        "A tenant's queue is first come, first served until its oldest call has waited this long; then the newest goes first.",
    )
    hold_back_share: float = limit(
        0.1,
        "Share of the capacity that calls leave free for each higher priority in use, and that jobs leave free for live calls.",
        most=0.5,
    )
    jobs_calm_s: float = limit(
        5.0,
        "Jobs leave room for the peak number of concurrent live calls in this time window (at most twice as long).",
    )
    job_yields_max: int = limit(
        3, "How often live calls may preempt a job item; after that, one such item per backend runs to its end."
    )
    jobs_hold_back_share: float = limit(
        0.3,
        "Share of the capacity that jobs leave free while live calls arrive, because a full batch slows every call down; "
        "after jobs_calm_s without a live call, hold_back_share applies.",
        most=0.9,
    )
    backfill_s: float = limit(
        1.0,
        "How long smaller calls may overtake one that fits into no backend's free cache; then freed cache is reserved for it.",
    )
    retry_share_max: float = limit(
        0.1,
        "Retry budget: retries (x-stainless-retry-count) as a share of all attempts; beyond it, retries are refused.",
        most=1,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class JobLimits(RequestLimits, CallLimits):
    """Limits on jobs that run here."""

    jobs_max: int = cap(1000, "Maximum unfinished jobs of a tenant.", least=0)
    job_items_max: int = cap(1_000_000, "Maximum unfinished items of a tenant's jobs.", least=0)
    job_bytes_max: int = cap(
        4 * 1024**3,
        "Maximum bytes of a tenant's jobs, results and files; beyond it no more are accepted, but accepted items still run.",
        least=0,
    )
    batch_items_max: int = cap(100_000, "Maximum requests in a batch.")
    batch_window_max_s: float = cap(7 * 86_400.0, "Longest completion window of a batch.")
    file_bytes_max: int = cap(512 * 1024 * 1024, "Largest file that may be uploaded.", least=1024)
    job_lease_s: float = cap(
        300.0, "Lease of a job: how long it runs without being polled; an open event stream holds it.", least=1
    )
    job_lease_max_s: float = cap(86_400.0, "Longest lease that a client may ask for (x-hangup-lease).")
    job_cancel_wait_s: float = cap(5.0, "How long a cancel waits for the engine to stop before hangup answers it.", least=0)
    job_events_bytes_max: int = limit(
        4 * 1024 * 1024, "Maximum bytes of events kept per job, the newest ones, for clients that reconnect.", least=1024
    )
    job_results_held_bytes_max: int = limit(
        256 * 1024 * 1024,
        "Results in memory that wait for the store, as while the disk is full; with more, no further item of a job starts.",
        least=1024,
    )
    job_failures_max: int = limit(3, "How often engines may fail on an item before it counts as failed.", least=1)
    job_worker_silence_s: float = limit(
        15.0, "A gateway on the same store that sends no heartbeat for this long loses its claimed items.", least=5
    )


class ServingLimits(JobLimits, FailoverLimits, TrafficLimits):
    """All limits on a request of a client, whichever kind of call it becomes. A route or a tenant may override some."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ProviderLimits(CallLimits):
    """Limits on jobs at a hosted provider (`jobs = "provider"`)."""

    provider_jobs_max: int = limit(
        1000, "Maximum jobs that hangup follows at a provider; it forwards one more without following it.", least=1
    )
    provider_uploads_bytes_max: int = limit(
        1024**3,
        "Maximum bytes of files and message batches in transit to a provider; hangup holds them in memory.",
        least=1024,
    )
    provider_look_s: float = limit(60.0, "Pause between two polls of a job that runs at a provider.", least=0.05)
    provider_poll_s: float = limit(
        0.5, "Pause between a cancel and the next poll of the provider; it doubles each time.", least=0.01
    )
    provider_poll_max_s: float = limit(15.0, "Longest pause between two such polls.", least=0.01)
    provider_cancel_s: float = limit(
        900.0,
        "Timeout for a provider to stop a cancelled job; then hangup stops polling and shows it as cancelling.",
        least=0.1,
    )
    provider_cancel_attempts_max: int = limit(5, "Maximum attempts to send a cancel that fails at the provider.", least=1)
    provider_answer_s: float = limit(30.0, "Timeout for a provider to answer hangup's own requests.", least=0.05)
    provider_follow_s: float = limit(
        2 * 86_400.0, "How long hangup follows a job at a provider; hosted batches expire after a day.", least=1
    )


class JobServiceLimits(ProviderLimits, JobLimits):
    """All limits on jobs, wherever they run."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class HealthLimits:
    """When to check backends, and when one counts as down."""

    health_interval_s: float = limit(
        5.0, "Pause between two active health checks of a backend; about a fifth shorter at most, by chance.", least=0.1
    )
    health_timeout_s: float = limit(2.0, "Timeout for one health check.", least=0.05)
    models_interval_s: float = limit(
        5.0,
        "Pause between two polls of a backend's models; doubled while they stay the same, up to eight times as long. Hosted "
        "APIs are polled every five minutes. A call for a model that is unknown or refused has them polled at once.",
        least=0.1,
    )
    figures_poll_s: float = limit(
        0.5,
        "Pause between two polls of an engine's queue, while calls wait for a first token.",
        least=0.05,
    )
    status_timeout_s: float = limit(2.0, "Timeout for an engine to report what it runs.", least=0.05)
    failures_max: int = limit(3, "Failures in a row after which a backend counts as down.", least=1)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DiscoveryLimits:
    """How to follow the addresses of dns+ backends."""

    dns_interval_s: float = limit(5.0, "Pause between two DNS queries for a dns+ backend.", least=0.1)
    dns_timeout_s: float = limit(3.0, "Timeout for one DNS query; what is not answered changes nothing.", least=0.05)
    dns_gone_s: float = limit(
        15.0,
        "How long an address must be missing from all DNS answers before its backend is removed. Meanwhile it gets no new"
        " calls, unless the name has no address at all.",
    )
    dns_addresses_max: int = limit(256, "Maximum backends behind one DNS name; more addresses are ignored and logged.", least=1)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReaperLimits:
    """How to deal with engines that do not stop: aborts, quarantine, restart."""

    release_grace_s: float = limit(
        0.0, "How long an engine may work on after a call's end before the call counts as a zombie; 0: the engine's usual time."
    )
    prefill_grace_s: float = limit(
        10.0, "Added to release_grace_s for a call without a first token (its prefill runs on) or an engine too busy to report."
    )
    abort_again_max: int = limit(3, "Maximum repeated aborts for a zombie.")
    abort_backoff_s: float = limit(0.5, "Pause after the first repeated abort; it doubles each time.", least=0.01)
    wedge_s: float = limit(
        120.0,
        "How long an engine may be busy without progress, or not report what it runs, before it counts as wedged.",
        least=0.1,
    )
    still_s: float = limit(
        5.0,
        "How long an engine that does not stop ended calls may make no progress on any live call (beyond the time for their"
        " prompts); then its calls move to another backend or get 503, and a restart does not wait for them.",
        least=0.1,
    )
    orphans_s: float = limit(
        30.0,
        "How long orphans (work from before this gateway started, with no sign of another client) may run before hangup treats"
        " them like zombies; 0: it only logs them.",
    )
    restart_wait_s: float = limit(30.0, "With restart_force: how long calls in a quarantined backend may take to finish.")
    restarts_per_hour_max: int = limit(4, "Maximum restarts of a backend per hour.")
    restart_s: float = limit(180.0, "Timeout for a restarted engine to become healthy.", least=0.1)
    stop_s: float = limit(10.0, "How long a spawned engine may take to stop after SIGTERM; then hangup kills it.", least=0)
    canary_s: float = limit(30.0, "Timeout for the canary, a test call of one token after a quarantine.", least=0.1)
    zombie_stories_max: int = limit(100, "Maximum zombies kept with their history, including those that are gone.", least=1)
    kill_wait_s: float = limit(5.0, "How long a kill waits for the engine to confirm; a kill may ask for less.")


class BackendLimits(ReaperLimits, HealthLimits, EngineLimits):
    """All limits that concern one backend."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReportLimits:
    """Limits on the ledger, the metrics, the traces, and the divergence alarm."""

    metric_label_sets_max: int = limit(
        1000,
        "Maximum sets of route, tenant, model and backend that hangup_calls_total has; half of them may name a model, and calls"
        " beyond are counted under the name other.",
        least=2,
    )
    metric_histograms_max: int = limit(
        64,
        "Maximum pairs of model and backend that each histogram of calls has; calls beyond are counted under the name other.",
        least=1,
    )
    ledger_flush_s: float = limit(
        1.0, "Pause between two writes of the ledger; a killed process loses at most this much.", least=0.05
    )
    ledger_accounts_max: int = limit(
        100_000,
        "Maximum ledger accounts (tenant, model, backend, cause) that wait to be written; more are dropped and counted.",
    )
    ledger_bytes_max: int = limit(
        1024**3,
        "Maximum size of the ledger, checked once an hour; beyond it, hangup deletes the oldest entries, whatever their age.",
        least=64 * 1024,
    )
    traced_calls_max: int = limit(10_000, "Maximum ended calls that wait to be sent as traces; more are dropped and counted.")
    trace_release_s: float = limit(
        10.0, "How long the trace of a call that ended early waits for the engine to confirm the stop."
    )
    trace_share: float = limit(
        1.0, "Share of ordinary calls that are traced; calls that fail, are retried or are slow always are.", most=1
    )
    trace_slow_s: float = limit(10.0, "A call whose first token takes longer is always traced.")
    trace_send_s: float = limit(5.0, "Timeout for sending a batch of traces to the collector.", least=0.1)
    counters_interval_s: float = limit(5.0, "Pause between two polls of an engine's own counters.", least=0.1)
    history_looks_max: int = limit(360, "Maximum polls of these counters kept for the dashboard's graphs.", least=2)
    history_minutes_max: int = limit(360, "Maximum minutes kept for the dashboard's graphs, beyond these polls.", least=1)
    history_quarters_max: int = limit(
        672, "Maximum quarters of an hour kept for the dashboard's graphs, beyond these minutes; 672 are 7 days.", least=1
    )
    history_groups_max: int = limit(
        8, "Maximum models, tenants and backends that each of these intervals has apart; others are added up.", least=1
    )
    history_events_max: int = limit(
        200, "Maximum changes of backends, alarms and steps of the ladder that the dashboard lists."
    )
    webhook_s: float = limit(5.0, "Timeout for the POST to alarm_webhook; it is not retried.", least=0.1)
    divergence_window_s: float = limit(20.0, "Time window that the divergence alarm compares.", least=1)
    divergence_hold_s: float = limit(
        20.0, "How long a divergence must last before the alarm is raised, and be over before it ends."
    )
    divergence_share_max: float = limit(
        0.25, "Maximum share of an engine's computed tokens that nobody receives; above it, the alarm is raised.", most=1
    )
    divergence_yield_min: float = limit(
        0.4,
        "For engines that do not count tokens: minimum of tokens received per busy second, as a share of the engine's best.",
        most=1,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ProcessLimits:
    """Limits on the process itself."""

    drain_s: float = limit(30.0, "Shutdown timeout after SIGTERM: how long running calls may take before hangup ends them.")
    exit_s: float = limit(
        20.0,
        "After the drain: within this time the process exits, also if a store is locked or a disk hangs. Clients read their "
        "last bytes, spawned engines stop, and results, ledger and traces are written; the log says what could not be.",
        least=1,
    )
    worker_silence_s: float = limit(
        20.0, "How long a worker process may be silent, stopped or blocked, before hangup kills and replaces it.", least=1
    )
    secret_command_s: float = limit(
        10.0, "Timeout for a command that prints a key, a token or headers (api_key_command and the like).", least=0.1
    )
    shared_state_timeout_s: float = limit(1.0, "Timeout for a command to shared_state; no call waits for it.", least=0.05)
    gateway_silence_s: float = limit(
        10.0,
        "How long a gateway on the same shared_state may be silent, and not answer at its peer_port either, before others use "
        "its slots and abort its calls. One whose process is gone is noticed within a second.",
        least=1,
    )
    ended_calls_max: int = limit(1000, "Maximum ended calls kept for `hangup trace`.", least=1)
    log_wait_s: float = limit(
        1.0,
        "How long the log line of a stopped call waits for the engine to confirm the stop; 0: it is written at once.",
    )
    log_lines_max: int = limit(
        10_000, "Maximum log lines held while the log's reader is slow; more are dropped and counted.", least=1
    )
    wal_bytes_max: int = limit(
        64 * 1024 * 1024,
        "Maximum size of the write-ahead logs of the job store and the ledger after a checkpoint.",
        least=4096,
    )
    loop_stall_s: float = limit(1.0, "How long the event loop may be blocked before hangup logs its stack.", least=0.1)
    thread_stall_s: float = limit(
        30.0,
        "How long a thread may take for one write to the job store, the ledger, the log or the trace collector, before /readyz"
        " names it, hangup logs its stack, and further work for that job store is refused.",
        least=0.1,
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings(
    ProcessLimits, ReportLimits, DiscoveryLimits, BackendLimits, JobServiceLimits, AdmissionLimits, ServingLimits
):
    """All limits. Those marked per call can be overridden for a route and for a tenant; the tenant's value wins."""

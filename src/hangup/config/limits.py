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

    output_tokens_default: int = cap(32768, "Most output tokens per choice when the client names no maximum.")
    output_tokens_max: int = cap(32768, "Most output tokens per choice; hangup ends a longer answer there.")
    choices_max: int = cap(32, "Most answers in one call: n or best_of, times the number of prompts.")
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
        100_000, "Most values in a JSON body, so that parsing one cannot delay other calls.", least=100
    )
    json_depth_max: int = limit(200, "Most levels of nesting in a JSON body; a deeper one is refused.", least=8, most=250)
    media_held_bytes_max: int = limit(
        1024**3,
        "Most bytes of bodies with audio or image files in memory; one more call with a file is refused.",
        least=1024,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClientLimits:
    """Limits on a client's connection."""

    connections_max: int = limit(
        20_000, "Most client connections at a time, including TLS handshakes; one more gets 503.", least=1
    )
    header_s: float = limit(10.0, "Timeout for a request's headers to arrive.", least=0.1)
    header_bytes_max: int = limit(32 * 1024, "Largest request head, request line included.", least=1024)
    header_count_max: int = limit(128, "Most header lines in a request.", least=8)
    url_bytes_max: int = limit(8 * 1024, "Longest request target.", least=64)
    bodies_bytes_max: int = limit(
        512 * 1024 * 1024, "Most bytes of incomplete request bodies, of all clients together.", least=1024
    )
    body_idle_s: float = limit(30.0, "Timeout between two reads of a request body.", least=0.1)
    idle_s: float = limit(75.0, "Keep-alive timeout: how long a client's connection may be idle between two calls.", least=0.1)
    pipelined_bytes_max: int = limit(
        64 * 1024, "Bytes kept of a request pipelined behind a running call; beyond it the connection closes after that call."
    )
    client_silence_s: float = limit(
        15.0, "Timeout after which a client whose host no longer answers TCP counts as gone.", least=1
    )
    write_stall_s: float = limit(30.0, "Timeout after which a client that does not read counts as gone.", least=0.1)
    linger_s: float = limit(2.0, "How long a refused client may take to read the error; hangup discards its request meanwhile.")
    websocket_close_s: float = limit(5.0, "Timeout for the answer to a WebSocket's Close frame.", least=0.01)
    websocket_buffer_bytes_max: int = limit(
        256 * 1024,
        "Most bytes held that a client sent over a WebSocket and its engine has not read; then hangup stops reading.",
        least=1,
    )
    admin_connections_max: int = limit(
        64, "Most connections to the admin port at a time; one more is closed at once. Silent ones are closed.", least=4
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
    engine_idle_connections_max: int = limit(512, "Most unused connections kept per backend.")
    engine_header_bytes_max: int = limit(64 * 1024, "Largest response head taken from an engine.", least=1024)
    engine_receive_bytes_max: int = limit(
        128 * 1024,
        "Kernel buffer for what an engine sends: how far it can run ahead of a client that does not read.",
        least=4096,
    )
    step_slo_s: float = limit(
        0.1,
        "Time per token that a backend with learned slots should keep; it gets fewer calls when it is slower than this "
        "and than twice its best.",
        least=0.001,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FailoverLimits:
    """Limits on retries of a call at other backends."""

    engine_responses_max: int = limit(
        10_000, "Most stored responses (/v1/responses/{id}) for which hangup remembers the backend.", least=0
    )
    failover_max: int = limit(2, "Most retries at other backends when one fails before its first byte.")
    refusals_max: int = limit(
        8, "Most attempts of a call that engines refuse (429, 529, or 503 with Retry-After) before its client gets the refusal."
    )
    refusal_pause_s_max: float = limit(60, "Longest pause for a backend that refuses calls, whatever Retry-After it sends.")
    model_refused_s: float = limit(
        30.0, "After a backend answered 404 to a call: how long hangup prefers others for the same model and API."
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AdmissionLimits(CallLimits):
    """Limits on the queue, and its order."""

    queue_depth_max: int = limit(1024, "Most calls that wait for a free backend; beyond that, one is refused.")
    queue_bytes_max: int = limit(
        256 * 1024 * 1024, "Most bytes of request bodies held by waiting calls; parsed they take about as much again."
    )
    lifo_after_s: float = limit(
        2.0, "A tenant's calls go first come first served until its oldest has waited this long, then the newest goes first."
    )
    hold_back_share: float = limit(
        0.1,
        "Share of the capacity kept free for each higher priority that some tenant has, and by jobs for live calls.",
        most=0.5,
    )
    jobs_calm_s: float = limit(
        5.0,
        "Jobs leave room for as many live calls as there were at a time within the last so many seconds (up to twice that).",
    )
    job_yields_max: int = limit(
        3, "How often an item of a job makes way for live calls; after that, one such item on each backend runs to its end."
    )
    jobs_hold_back_share: float = limit(
        0.3,
        "Share of the capacity that jobs leave free while live calls come, since a full batch makes every call slower; "
        "when none has come for jobs_calm_s it is hold_back_share.",
        most=0.9,
    )
    backfill_s: float = limit(
        1.0, "How long smaller calls may overtake one that fits into no backend's cache; then what gets free is kept for it."
    )
    retry_share_max: float = limit(
        0.1, "Retries (x-stainless-retry-count) as a share of all attempts; beyond it they are the first to be refused.", most=1
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class JobLimits(RequestLimits, CallLimits):
    """Limits on jobs that run here."""

    jobs_max: int = cap(1000, "Most unfinished jobs of a tenant.", least=0)
    job_items_max: int = cap(1_000_000, "Most unfinished items of a tenant's jobs.", least=0)
    job_bytes_max: int = cap(
        4 * 1024**3,
        "Most bytes of a tenant's jobs, results and files; beyond it no more are accepted, but accepted items still run.",
        least=0,
    )
    batch_items_max: int = cap(100_000, "Most requests in a batch.")
    batch_window_max_s: float = cap(7 * 86_400.0, "Longest completion window of a batch.")
    file_bytes_max: int = cap(512 * 1024 * 1024, "Largest file that may be uploaded.", least=1024)
    job_lease_s: float = cap(
        300.0, "Lease of a job: how long it runs without being polled; an open event stream holds it.", least=1
    )
    job_lease_max_s: float = cap(86_400.0, "Longest lease that a client may ask for (x-hangup-lease).")
    job_cancel_wait_s: float = cap(5.0, "How long a cancel waits for the engine to stop before hangup answers it.", least=0)
    job_events_bytes_max: int = limit(
        4 * 1024 * 1024, "Newest events of a job that are kept, to be read again or later.", least=1024
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


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ProviderLimits(CallLimits):
    """Limits on jobs at a hosted provider (`jobs = "provider"`)."""

    provider_jobs_max: int = limit(
        1000, "Most jobs at a provider that hangup follows; it passes one more without following it.", least=1
    )
    provider_uploads_bytes_max: int = limit(
        1024**3,
        "Most bytes of files and message batches in transit to a provider; hangup holds them in memory.",
        least=1024,
    )
    provider_look_s: float = limit(60.0, "Pause between two polls of a job that runs at a provider.", least=0.05)
    provider_poll_s: float = limit(
        0.5, "Pause between a cancel and the next poll of the provider; it doubles each time.", least=0.01
    )
    provider_poll_max_s: float = limit(15.0, "Longest such pause.", least=0.01)
    provider_cancel_s: float = limit(
        900.0, "Timeout for a provider to stop a cancelled job; then hangup gives up and shows it as cancelling.", least=0.1
    )
    provider_cancel_attempts_max: int = limit(5, "Most attempts to send a cancel that fails at the provider.", least=1)
    provider_answer_s: float = limit(30.0, "Timeout for a provider to answer hangup's own requests.", least=0.05)
    provider_follow_s: float = limit(
        2 * 86_400.0, "How long hangup follows a job at a provider; hosted batches have a day to end.", least=1
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class HealthLimits:
    """When to check backends, and when one counts as down."""

    health_interval_s: float = limit(5.0, "Pause between two active health checks of a backend.", least=0.1)
    health_timeout_s: float = limit(2.0, "Timeout for one health check.", least=0.05)
    models_interval_s: float = limit(
        5.0, "Pause between two polls of a backend's models; hosted APIs are polled every five minutes.", least=0.1
    )
    figures_poll_s: float = limit(
        0.5,
        "Pause between two polls of an engine's queue, while calls wait for a first token.",
        least=0.05,
    )
    status_timeout_s: float = limit(2.0, "Timeout for an engine to report what it runs.", least=0.05)
    failures_max: int = limit(3, "Failures in a row after which a backend counts as down.", least=1)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReaperLimits:
    """How to deal with engines that do not stop: aborts, quarantine, restart."""

    release_grace_s: float = limit(
        0.0, "How long an engine may work after a call's end before that counts as a zombie; 0: the engine's usual time."
    )
    prefill_grace_s: float = limit(
        10.0, "Added to that for a call without a first token: prefills run on; and for an engine too busy to answer."
    )
    abort_again_max: int = limit(3, "Most repeated aborts for a zombie.")
    abort_backoff_s: float = limit(0.5, "Pause after the first of these; it doubles each time.", least=0.01)
    wedge_s: float = limit(
        120.0,
        "How long an engine may be busy without progress, or not report what it runs, before it counts as wedged.",
        least=0.1,
    )
    still_s: float = limit(
        5.0,
        "An engine that does not let go of ended calls, and has given nothing to any live one for so long (beyond the time that"
        " their prompts take), stands still: its calls go elsewhere or get 503, and a restart does not wait for them.",
        least=0.1,
    )
    orphans_s: float = limit(
        30.0,
        "Work that was in an engine before this gateway came, and that no sign of another client explains, is treated like a"
        " zombie after so long; 0: it is only logged.",
    )
    restart_wait_s: float = limit(30.0, "With restart_force: how long calls in a quarantined backend may take to finish.")
    restarts_per_hour_max: int = limit(4, "Most restarts of a backend in an hour.")
    restart_s: float = limit(180.0, "Timeout from a restart to a healthy engine.", least=0.1)
    stop_s: float = limit(10.0, "How long a spawned engine may take to stop after SIGTERM; then hangup kills it.", least=0)
    canary_s: float = limit(30.0, "Timeout for the canary, a test call of one token after a quarantine.", least=0.1)
    zombie_stories_max: int = limit(100, "Most zombies remembered with their history, including those that are gone.", least=1)
    kill_wait_s: float = limit(5.0, "How long a kill waits for the engine to confirm; a kill may ask for less.")


class BackendLimits(ReaperLimits, HealthLimits, EngineLimits):
    """All limits that concern one backend."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReportLimits:
    """Limits on the ledger, the traces, and the divergence alarm."""

    ledger_flush_s: float = limit(
        1.0, "How often hangup writes the ledger; a killed process loses at most this much.", least=0.05
    )
    ledger_accounts_max: int = limit(
        100_000,
        "Accounts (tenant, model, backend, cause) that may wait to be written into the ledger; more are dropped and counted.",
    )
    ledger_bytes_max: int = limit(
        1024**3,
        "Size of the ledger, looked at once an hour; beyond it the oldest entries are deleted, however young they are.",
        least=64 * 1024,
    )
    traced_calls_max: int = limit(10_000, "Ended calls that may wait to be sent as traces; more are dropped and counted.")
    trace_release_s: float = limit(
        10.0, "How long the trace of a call that ended early waits for the engine's word that it let go."
    )
    trace_send_s: float = limit(5.0, "Longest time for the collector to take a batch of traces.", least=0.1)
    counters_interval_s: float = limit(5.0, "Pause between two looks at an engine's own counters.", least=0.1)
    history_looks_max: int = limit(360, "Such looks that are remembered, for the dashboard's picture.", least=2)
    webhook_s: float = limit(5.0, "Longest time for alarm_webhook to take an alarm; it is sent once.", least=0.1)
    divergence_window_s: float = limit(20.0, "What the divergence alarm looks at.", least=1)
    divergence_hold_s: float = limit(20.0, "How long a divergence must last before the alarm, and be gone before its end.")
    divergence_share_max: float = limit(0.25, "Tokens for nobody, as a share of those that an engine computed.", most=1)
    divergence_yield_min: float = limit(
        0.4, "Tokens per busy second, as a share of what an engine has shown to give, where it does not count them.", most=1
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ProcessLimits:
    """Limits on the process itself."""

    drain_s: float = limit(30.0, "After SIGTERM: how long running calls may take before they are ended.")
    ended_calls_max: int = limit(1000, "Ended calls remembered for `hangup trace`.", least=1)
    log_wait_s: float = limit(
        1.0,
        "How long the log line of a call that was stopped in its engine waits for the engine's word on it; 0: it is written"
        " at once.",
    )
    log_lines_max: int = limit(10_000, "Log lines held while the log's reader is slow; more are dropped and counted.", least=1)
    wal_bytes_max: int = limit(
        64 * 1024 * 1024,
        "Size to which the write-ahead log of the job store, and that of the ledger, is cut after a checkpoint.",
        least=4096,
    )
    loop_stall_s: float = limit(1.0, "How long the event loop may be blocked before hangup logs its stack.", least=0.1)


@dataclass(frozen=True, kw_only=True)
class LimitSettings(
    ProcessLimits, ReportLimits, BackendLimits, ProviderLimits, JobLimits, AdmissionLimits, FailoverLimits, TrafficLimits
):
    """All limits. Those marked per call can be overridden for a route and for a tenant; the tenant's value wins."""

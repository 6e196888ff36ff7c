"""Every limit has a test that exceeds it: a new limit without an entry here fails, and so does an entry without its test.

The test sets its limit to a small value, or uses the default, goes beyond it and checks what happens then. Its module names the
limit, so that whoever looks for the name finds the test.
"""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from pathlib import Path

import pytest

from hangup.config import LimitSettings

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "hangup"
# A component takes the group of limits that it uses. Only these handle them all: the packages read the configuration, show it
# or simulate a whole gateway; the modules put the gateway together, or merge the limits of routes and tenants.
WHOLE = {"LimitSettings", "Settings"}
PACKAGES_WITH_ALL = ("config/", "cli/", "sim/")
MODULES_WITH_ALL = {
    "gateway/fixed_settings.py",
    "gateway/gateway.py",
    "gateway/hosts/server.py",
    "gateway/ports.py",
    "gateway/request_policy.py",
    "gateway/job_opener.py",
    "gateway/server.py",
    "gateway/workers/server.py",
    "gateway/workers/settings.py",
    "gateway/workers/supervisor.py",
}
RUNS_INTO = {
    # A call
    "output_tokens_default": "gateway/test_caps.py::TestOutputTokens::test_nothing_is_added_when_the_client_gives_none",
    "output_tokens_max": "gateway/test_caps.py::TestOutputTokens::test_nothing_is_added_when_the_client_gives_none",
    "choices_max": "gateway/test_bounds.py::TestAnswersAskedFor::test_too_many",
    "total_s": "gateway/test_caps.py::TestTime::test_total",
    "first_token_s": "gateway/test_caps.py::TestTime::test_first_token",
    "gap_s": "gateway/test_caps.py::TestTime::test_gap",
    "queue_s": "gateway/test_caps.py::TestTime::test_queue",
    "body_bytes_max": "gateway/test_dropin.py::TestFiles::test_a_larger_one_is_refused_with_the_limit_and_its_name",
    "media_bytes_max": "gateway/test_dropin.py::TestFiles::test_a_larger_one_is_refused_with_the_limit_and_its_name",
    "event_bytes_max": "gateway/test_caps.py::test_event_bytes",
    "answer_bytes_max": "gateway/test_endings.py::test_an_answer_that_is_put_together_is_bounded",
    "websocket_s": "gateway/test_websocket.py::TestLimits::test_total",
    "websocket_idle_s": "gateway/test_websocket.py::TestLimits::test_idle",
    # Requests and connections
    "body_s": "gateway/test_edge.py::TestSlow::test_body_drop_by_drop",
    "upload_s": "gateway/test_named_limits.py::test_upload_s",
    "name_bytes_max": "gateway/test_bounds.py::TestNames::test_a_long_one_is_refused",
    "json_elements_max": "gateway/test_named_limits.py::test_json_elements_max",
    "json_depth_max": "gateway/test_named_limits.py::test_json_depth_max",
    "media_held_bytes_max": "gateway/test_dropin.py::TestFiles::test_what_is_held_is_bounded_and_given_back",
    "connections_max": "gateway/test_bounds.py::TestConnections::test_one_more_is_told_why",
    "header_s": "gateway/test_edge.py::TestSlow::test_slow_headers",
    "header_bytes_max": "gateway/test_named_limits.py::test_header_bytes_max",
    "header_count_max": "gateway/test_named_limits.py::test_header_count_max",
    "url_bytes_max": "gateway/test_named_limits.py::test_url_bytes_max",
    "bodies_bytes_max": "gateway/test_bounds.py::test_bodies_on_their_way_in",
    "body_idle_s": "gateway/test_edge.py::TestSlow::test_silent_body",
    "idle_s": "gateway/test_edge.py::TestSlow::test_idle_keep_alive",
    "pipelined_bytes_max": "gateway/test_bounds.py::test_bytes_behind_a_running_call",
    "client_silence_s": "gateway/test_detect.py::test_vanished_while_we_write",
    "write_stall_s": "gateway/test_detect.py::test_stops_reading_but_stays",
    "linger_s": "gateway/test_named_limits.py::test_linger_s",
    "websocket_close_s": "gateway/test_websocket.py::TestHangUps::test_a_close_that_the_engine_does_not_hear",
    "websocket_buffer_bytes_max": "gateway/test_websocket.py::TestHangUps::test_behind_a_full_engine",
    "admin_connections_max": "admin/test_guard.py::TestConnections::test_they_are_few",
    # Engines
    "connect_s": "gateway/test_limits_alone.py::test_connect_s",
    "engine_idle_s": "gateway/test_engine_faults.py::TestConnections::test_idle_ones_are_dropped_in_time",
    "engine_idle_connections_max": "gateway/test_named_limits.py::test_engine_idle_connections_max",
    "engine_header_bytes_max": "gateway/test_named_limits.py::test_engine_header_bytes_max",
    "engine_receive_bytes_max": "gateway/test_limits_alone.py::test_engine_receive_bytes_max",
    "step_slo_s": "core/test_admission_engines.py::test_a_slow_engine_gets_fewer_calls",
    "engine_responses_max": "gateway/test_dropin.py::TestResponses::test_several_backends",
    "failover_max": "gateway/test_engine_connections.py::TestReplay::test_is_counted_as_an_attempt",
    "refusals_max": "gateway/test_named_limits.py::test_refusals_max",
    "refusal_pause_s_max": "gateway/test_limits_alone.py::test_refusal_pause_s_max",
    "model_refused_s": "gateway/test_limits_alone.py::test_model_refused_s",
    "health_interval_s": "gateway/test_dropin.py::TestHealth::test_503_while_no_backend_is_up",
    "health_timeout_s": "admin/test_api.py::test_when_the_only_one_is_down_a_call_is_refused_soon_and_told_when_to_come_back",
    "models_interval_s": "gateway/test_routing.py::test_a_model_that_was_just_loaded_is_found",
    "figures_poll_s": "gateway/test_limits_alone.py::test_figures_poll_s",
    "status_timeout_s": "reaper/test_faults.py::test_a_status_page_that_hangs_is_found_without_any_hang_up",
    "dns_interval_s": "gateway/test_dns_backends.py::test_a_server_that_does_not_answer_changes_nothing",
    "dns_timeout_s": "gateway/test_dns_backends.py::test_a_server_that_does_not_answer_changes_nothing",
    "dns_gone_s": "gateway/test_dns_backends.py::test_those_that_leave_are_drained_and_new_ones_get_a_canary_first",
    "dns_addresses_max": "gateway/test_dns_backends.py::test_no_more_backends_than_dns_addresses_max",
    "failures_max": "core/test_health.py::test_any_order_of_events_keeps_the_facts_apart",
    # Admission
    "queue_depth_max": "core/test_admission.py::test_the_longest_line_makes_room_for_others_but_not_for_itself",
    "queue_bytes_max": "gateway/test_queue.py::TestQueue::test_a_queue_is_bounded_in_bytes",
    "lifo_after_s": "core/test_admission.py::test_the_newest_goes_first_once_the_line_stands",
    "hold_back_share": "core/test_admission.py::test_higher_bands_go_first_and_capacity_is_held_back_for_them",
    "jobs_calm_s": "core/test_admission_jobs.py::test_no_calm_needed",
    "job_yields_max": "gateway/test_limits_alone.py::test_job_yields_max",
    "jobs_hold_back_share": "core/test_admission_jobs.py::test_while_live_calls_come_jobs_leave_more",
    "backfill_s": "core/test_admission.py::test_a_large_prompt_does_not_starve_behind_small_ones",
    "retry_share_max": "gateway/test_limits_alone.py::test_retry_share_max",
    # Jobs
    "jobs_max": "jobs/test_job_cancel.py::TestWhoMay::test_quotas",
    "job_items_max": "gateway/test_named_limits.py::test_job_items_max",
    "job_bytes_max": "jobs/test_job_cancel.py::TestWhoMay::test_quotas",
    "batch_items_max": "gateway/test_named_limits.py::test_batch_items_max",
    "batch_window_max_s": "gateway/test_named_limits.py::test_batch_window_max_s",
    "file_bytes_max": "jobs/test_job_cancel.py::TestWhoMay::test_quotas",
    "job_lease_s": "jobs/test_job_cancel.py::TestLease::test_a_background_response_too",
    "job_lease_max_s": "gateway/test_named_limits.py::test_job_lease_max_s",
    "job_cancel_wait_s": "jobs/test_job_cancel.py::TestCancel::test_an_engine_that_does_not_listen",
    "job_events_bytes_max": "jobs/test_job_bounds.py::test_events_are_few_however_small_they_are",
    "job_results_held_bytes_max": "jobs/test_job_bounds.py::test_no_item_starts_while_too_many_results_wait_for_the_store",
    "job_failures_max": "gateway/test_limits_alone.py::test_job_failures_max",
    "job_worker_silence_s": (
        "jobs/test_job_crashes.py::TestTwoOnOneStore::test_one_that_hangs_loses_its_items_and_its_late_results_are_refused"
    ),
    "provider_jobs_max": "jobs/test_job_provider_keys.py::TestBounds::test_so_many_are_followed_and_no_more",
    "provider_uploads_bytes_max": "jobs/test_job_provider.py::TestPassing::test_uploads_under_way_are_bounded",
    "provider_look_s": "jobs/test_job_provider.py::TestLease::test_the_end_is_heard_of",
    "provider_poll_s": "jobs/test_job_provider_keys.py::TestBounds::test_the_first_pause_between_polls_after_a_cancel",
    "provider_poll_max_s": "jobs/test_job_provider_keys.py::TestBounds::test_the_longest_pause_between_polls_after_a_cancel",
    "provider_cancel_s": "jobs/test_job_provider.py::TestCancel::test_a_provider_that_never_stops",
    "provider_cancel_attempts_max": "jobs/test_job_provider.py::TestCancel::test_it_is_not_sent_for_ever",
    "provider_answer_s": "jobs/test_job_provider_keys.py::TestBounds::test_one_that_does_not_answer_is_not_waited_for_for_ever",
    "provider_follow_s": "jobs/test_job_provider_keys.py::TestBounds::test_one_is_not_followed_for_ever",
    # The reaper
    "release_grace_s": "admin/test_kill.py::test_a_deaf_engine_is_not_called_verified",
    "prefill_grace_s": "reaper/test_pending_stops.py::test_an_engine_that_does_not_answer_keeps_the_place_and_is_judged_late",
    "abort_again_max": "reaper/test_faults.py::test_a_deaf_engine_is_named_told_again_a_few_times_and_quarantined",
    "abort_backoff_s": "reaper/test_ladder.py::test_aborts_are_few_and_far_between_however_often_it_is_looked_at",
    "wedge_s": "reaper/test_faults.py::test_an_engine_that_gets_nothing_done_is_found_without_any_hang_up",
    "still_s": "reaper/test_wedge_traffic.py::test_a_call_that_has_not_begun_is_served_elsewhere",
    "orphans_s": "reaper/test_wedge_traffic.py::test_slots_at_work_for_a_former_gateway_get_no_calls_and_are_dealt_with",
    "restart_wait_s": "reaper/test_ladder.py::test_no_live_client_is_harmed_unless_told_so",
    "restarts_per_hour_max": "gateway/test_limits_alone.py::test_restarts_per_hour_max",
    "restart_s": "gateway/test_limits_alone.py::test_restart_s",
    "stop_s": "reaper/test_faults.py::test_a_spawned_engine_that_ignores_sigterm_is_killed_with_all_its_children",
    "canary_s": "gateway/test_limits_alone.py::test_canary_s",
    "zombie_stories_max": "gateway/test_bounds.py::TestWhatIsRemembered::test_stories_of_zombies",
    "kill_wait_s": "admin/test_kill.py::test_a_deaf_engine_is_not_called_verified",
    # Reports and the process
    "ledger_flush_s": "store/test_ledger.py::test_kill_9_loses_one_batch_at_most",
    "ledger_accounts_max": "store/test_ledger.py::test_more_than_may_wait_is_counted",
    "ledger_bytes_max": "store/test_ledger.py::test_a_ledger_that_is_too_large_loses_its_oldest_minutes",
    "traced_calls_max": "gateway/test_bounds.py::TestWhatIsRemembered::test_calls_that_wait_to_be_traced",
    "trace_release_s": "admin/test_otlp.py::test_a_zombie_is_told_of_when_no_more_is_waited_for",
    "trace_share": "core/test_spans.py::test_of_ordinary_calls_a_share_is_kept_and_of_strange_ones_all",
    "trace_slow_s": "core/test_spans.py::test_of_ordinary_calls_a_share_is_kept_and_of_strange_ones_all",
    "trace_send_s": "gateway/test_limits_alone.py::test_trace_send_s",
    "counters_interval_s": "gateway/test_bounds.py::TestWhatIsRemembered::test_the_dashboards_history",
    "metric_label_sets_max": "core/test_accounts.py::TestLabels::test_half_of_them_may_name_models",
    "metric_histograms_max": "admin/test_call_metrics.py::test_labels_are_bounded",
    "history_minutes_max": "core/test_history.py::test_rings_forget_the_oldest",
    "history_quarters_max": "core/test_history.py::test_rings_forget_the_oldest",
    "history_groups_max": "core/test_history.py::test_names_beyond_the_bound_are_added_up",
    "history_events_max": "gateway/test_bounds.py::TestWhatIsRemembered::test_the_dashboards_events",
    "history_looks_max": "gateway/test_bounds.py::TestWhatIsRemembered::test_the_dashboards_history",
    "webhook_s": "gateway/test_limits_alone.py::test_webhook_s",
    "divergence_window_s": "admin/test_ledger_totals.py::test_a_deaf_engine_raises_the_alarm_and_is_named",
    "divergence_hold_s": "core/test_divergence.py::test_zombies_all_the_time_are_an_alarm_after_a_window_and_a_hold",
    "divergence_share_max": "gateway/test_limits_alone.py::test_divergence_share_max",
    "divergence_yield_min": "gateway/test_limits_alone.py::test_divergence_yield_min",
    "drain_s": "gateway/test_process.py::TestDrain::test_deadline",
    "exit_s": "gateway/test_exit_deadline.py::test_locked_stores_and_open_streams_do_not_keep_the_process",
    "gateway_silence_s": "gateway/test_hosts.py::test_a_gateway_that_is_silent_for_too_long_is_given_up",
    "shared_state_timeout_s": "gateway/test_hosts.py::test_a_slow_or_frozen_store_costs_no_call",
    "worker_silence_s": "gateway/test_workers.py::test_a_stopped_worker_costs_no_call_and_is_replaced",
    "secret_command_s": "config/test_secrets_read.py::test_a_command_that_hangs",
    "ended_calls_max": "gateway/test_bounds.py::TestWhatIsRemembered::test_ended_calls",
    "log_wait_s": "admin/test_zombie_costs.py::test_a_line_waits_no_longer_than_it_may",
    "log_lines_max": "gateway/test_lost_and_unknown.py::test_no_more_lines_wait_than_the_log_may_hold",
    "wal_bytes_max": "store/test_ledger.py::test_the_write_ahead_log_is_cut_after_a_checkpoint",
    "loop_stall_s": "core/test_tasks.py::TestLoopWatch::test_a_blocked_loop_is_told_with_its_stack",
    "thread_stall_s": "gateway/test_named_limits.py::test_thread_stall_s",
}


@cache
def found_in(module: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(found)


def test_no_limit_is_without_a_test() -> None:
    limits = {field.name for field in dataclasses.fields(LimitSettings)}
    assert limits - RUNS_INTO.keys() == set(), "write a test that runs into it, and name it here"
    assert RUNS_INTO.keys() - limits == set(), "there is no such limit any more"


@pytest.mark.parametrize("limit", RUNS_INTO)
def test_each_test_exists_and_its_module_names_the_limit(limit: str) -> None:
    file, _, name = RUNS_INTO[limit].partition("::")
    assert name in found_in(TESTS / file), f"{file} has no {name}"
    assert limit in (TESTS / file).read_text(), f"{file} does not name {limit}"


def knows_all_limits(source: str) -> bool:
    """Return whether a module imports the whole settings, or takes all limits from an object that has them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hangup.config"):
            if WHOLE & {alias.name for alias in node.names}:
                return True
        elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith(".settings.limits"):
            return True
    return False


def test_a_component_gets_the_limits_that_it_uses() -> None:
    assert knows_all_limits("from hangup.config import (\n  CallLimits,\n  Settings)")
    assert knows_all_limits("def wait(self):\n  return self.ports.policy.settings.limits.kill_wait_s")
    assert not knows_all_limits("from hangup.config import CallLimits, BackendSettings\nlimits = self.backend.limits")
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name for name, path in modules.items() if knows_all_limits(path.read_text())}
    found = {name for name in found if not name.startswith(PACKAGES_WITH_ALL)}
    assert found - MODULES_WITH_ALL == set(), "take the group of limits that it uses, from hangup.config.limits"
    assert MODULES_WITH_ALL - found == set(), "these no longer need all limits: take them off the list"

"""hangup writes the log line of an ordinary call from a template, which must contain the same as the table of all fields."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import threading
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reaper import PendingStop
from hangup.gateway import log
from hangup.gateway.log import Log

TEXTS = st.text(max_size=20) | st.sampled_from(['"', "\\", "\n", "\u2028", "\ud800", "a" * 200])
SECONDS = st.floats(0, 1000)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    start = draw(st.floats(0, 1e6))
    call = Call(draw(TEXTS), start, draw(TEXTS))
    call.route, call.tenant, call.model = draw(TEXTS), draw(TEXTS), draw(TEXTS)
    call.stream, call.engine_id = draw(st.booleans()), draw(TEXTS)
    call.bytes_in, call.tokens_in = draw(st.integers(0, 1 << 40)), draw(st.none() | st.integers(0, 1 << 40))
    call.received(start + draw(SECONDS))
    call.sent(draw(TEXTS), start + draw(SECONDS))
    if draw(st.integers(0, 9)):
        call.answered(start + draw(SECONDS))
        if draw(st.integers(0, 9)):
            call.progressed(draw(st.integers(0, 1 << 40)), start + draw(SECONDS))
    call.tokens_exact, call.engine_finished = draw(st.booleans()), bool(draw(st.integers(0, 9)))
    call.trace_id = draw(st.sampled_from(["", "", "", "4bf92f35"]))
    if not draw(st.integers(0, 9)):
        call.pending_stops = (PendingStop(call.id, start),)
    reason = draw(st.sampled_from([reasons.COMPLETED, reasons.OUTPUT_TOKENS, reasons.ENGINE_ERROR]))
    call.end(reason, start + draw(SECONDS), draw(st.sampled_from(["", "", "", 'It said "no".'])))
    return call


@given(calls())
def test_the_template_says_what_the_table_says(call: Call) -> None:
    line = log._usual_line(call)
    table = log.call_record(call)
    usual = call.engine_finished and call.first_token_at is not None
    if call.pending_stops or call.trace_id or call.detail or not usual:
        assert line is None, "such a call has fields that the template lacks"
        return
    if line is None:
        assert "\ud800" in "".join([call.id, call.peer, call.route, call.tenant, call.model, call.backend, call.engine_id])
        return
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    told = json.loads(line)
    assert list(told) == list(table), "the same fields in the same order"
    for name, value in table.items():
        if name.endswith("_s"):
            assert told[name] == pytest.approx(value, abs=2e-6), name
        elif name != "time":
            assert told[name] == value and type(told[name]) is type(json.loads(json.dumps(value))), name


def test_names_that_clients_invent_are_not_kept_without_bound() -> None:
    for number in range(5000):
        call = Call("id", 0.0)
        call.model, call.engine_finished = f"model-{number}", True
        call.received(0.0)
        call.sent("engine", 0.0)
        call.answered(0.0)
        call.progressed(1, 0.0)
        call.end(reasons.COMPLETED, 1.0)
        assert log._usual_line(call) is not None
    assert 0 < len(log._names) <= 1024


def test_lines_beyond_the_limit_are_counted_as_dropped_whoever_writes_them(tmp_path: Path) -> None:
    written = Log(os.devnull, 0)
    try:
        call = Call("id", 0.0)
        call.end(reasons.CLIENT_FIN, 1.0)
        written.call_ended(call)
        written.event("test")
        assert written.dropped == 2
    finally:
        written.close()


def test_the_log_waits_for_a_pipe_whose_descriptor_is_high() -> None:
    """A log that is opened while a gateway has thousands of connections has one that `select.select` does not know."""
    reader, writer = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip("the process may not have that many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048) if soft >= 0 else soft, hard))
    try:
        with FileIO(fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, 1100), "w") as file:
            os.set_blocking(file.fileno(), False)
            while file.write(b"x" * 4096) is not None:
                pass  # until the pipe is full
            drain = threading.Thread(target=lambda: os.read(reader, 1 << 20))
            drain.start()
            log._wait_for_room(file)
            drain.join(60)
            assert file.write(b"y" * 4096), "there is room now"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(reader)
        os.close(writer)

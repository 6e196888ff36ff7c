"""`hangup demo` in a few seconds: it prints the table, its figures are consistent, and no process is left."""

from __future__ import annotations

import re
import signal

import pytest

from support.linux import proc
from support.processes import Process
from support.waiting import wait_until


@pytest.mark.alone
def test_the_crowd_costs_less_behind_hangup() -> None:
    with Process("demo", "--seconds", "4", "--slots", "2") as process:
        assert process.wait(300) == 0
    text = "\n".join(process.stdout_lines)
    wasted = [int(share) for share in re.search(r"for nobody .*?\((\d+)%\).*?\((\d+)%\)", text).groups()]  # type: ignore[union-attr]
    assert wasted[0] > 10 and wasted[1] < wasted[0] / 2, text


def test_it_takes_its_processes_along() -> None:
    def children(pid: int) -> list[int]:
        listed = proc(pid, f"task/{pid}/children").read_text().split()
        return [int(child) for child in listed]

    with Process("demo") as process:
        wait_until(lambda: children(process.popen.pid), what="the demo's engine")
        started = children(process.popen.pid)
        process.signal(signal.SIGTERM)
        assert process.wait() == 143
        wait_until(lambda: not [pid for pid in started if proc(pid).exists()], what="its processes to end")

"""`hangup/tasks.py` owns all tasks and threads: a task that is started elsewhere could die unnoticed."""

from __future__ import annotations

import ast
from pathlib import Path

import hangup

ROOT = Path(hangup.__file__).parent
STARTERS = {"create_task", "ensure_future", "run_in_executor", "Thread", "Timer", "ThreadPoolExecutor"}
OWNER = "tasks.py"


def started_in(path: Path) -> list[str]:
    """Return where a module starts a task or a thread by itself."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    named = ((node.lineno, getattr(node.func, "attr", getattr(node.func, "id", ""))) for node in calls)
    return [f"{path.relative_to(ROOT)}:{line} {name}" for line, name in named if name in STARTERS]


def test_no_module_starts_a_task_or_a_thread_by_hand() -> None:
    found = [place for path in sorted(ROOT.rglob("*.py")) if path.name != OWNER for place in started_in(path)]
    assert not found, f"start these by `TASKS` or `Tasks` of hangup/{OWNER}: {found}"


def test_the_owner_is_found_by_the_same_look() -> None:
    """Otherwise the test above might pass because its search finds nothing."""
    assert {place.split()[1] for place in started_in(ROOT / OWNER)} == {"create_task", "Thread"}


def health_written_in(source: str) -> list[str]:
    """Return the attributes of a backend's health that a module sets."""
    targets = [
        target
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    written = [part for part in parts if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Attribute | ast.Name)]
    return [part.attr for part in written if getattr(part.value, "attr", getattr(part.value, "id", "")) == "health"]


def test_a_backends_health_changes_by_events_alone() -> None:
    found = [field for path in sorted(ROOT.rglob("*.py")) for field in health_written_in(path.read_text())]
    assert set(found) <= {"failures_max"}, "call `apply`: only health.py knows which state follows which"
    assert health_written_in("a.health.trust = 1\nhealth.failures += 1\nb.health.up, c = 2, 3") == ["trust", "failures", "up"]

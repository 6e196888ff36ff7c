"""make mutants: break the code of core/ in small ways, one at a time, and see whether its tests notice.

usage: python -m tools.mutants [--seed N] [--minutes N] [--only PATH] [--per-module N] [--again FILE]

A mutant is one change: to a comparison, an operator, a number, a condition or a returned value, or a call that is omitted.
Mutants are drawn from a seed; each runs in a forked process that imports the changed module in place of the real one, so no
file changes. Only quick tests, without sockets, run. Tests that fail, or use far more CPU time than without the change, have
killed the mutant. A mutant that survives is printed: either it changes nothing that matters, or a test is missing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import hypothesis
import pytest

CORE = Path("src/hangup/core")
_DIRECT = "health estimates usual patience limiter limiter_in_admission admission admission_backends admission_jobs".split()
_ADMISSION = tuple(f"tests/core/test_{name}.py" for name in [*_DIRECT, "admission_oracle", "admission_jobs_oracle"])
_REAPER = ("tests/reaper/test_stillness.py", "tests/reaper/test_ladder.py", "tests/reaper/test_pending_stops.py")
_CALL = (
    "tests/core/test_accounts.py",
    "tests/core/test_engine_time.py",
    "tests/core/test_call.py",
    "tests/store/test_ledger.py",
)
TESTS = {  # by module or folder below core/: the quick ones first
    "account.py": _CALL,
    "admission": _ADMISSION,
    "call.py": (*_CALL, *_REAPER),
    "catalog.py": ("tests/core/test_catalog.py",),
    "deadline.py": ("tests/core/test_deadline.py",),
    "discovery.py": ("tests/core/test_discovery.py",),
    "divergence.py": ("tests/core/test_divergence.py",),
    "engine_count.py": ("tests/core/test_engine_count.py",),
    "engine_time.py": _CALL,
    "histogram.py": _CALL,
    "history.py": ("tests/core/test_history.py",),
    "jobs.py": ("tests/core/test_provider_job.py", "tests/jobs/test_job_rules.py", "tests/jobs/test_job_table.py"),
    "ledger.py": _CALL,
    "members": ("tests/core/test_members.py", "tests/core/test_allotments.py"),
    "provider_job.py": ("tests/core/test_provider_job.py",),
    "reaper": _REAPER,
    "spans.py": ("tests/core/test_spans.py",),
    "zombie_shares.py": _CALL,
}
_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
# CPU time limit of a mutant's tests: this many times what they take without it, plus these seconds
_CPU_TIMES, _CPU_MORE_S = 4, 10
_WALL_TIMES = 10  # wall-clock limit as a multiple of that, because a busy machine takes longer
_MEMORY = 4 << 30
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")


_LIVES = "lives: "


class Mutant(NamedTuple):
    path: Path
    place: int  # index of the changed node
    choice: int  # index of the change to it
    said: str  # where and what, in words


def change(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the possible replacements of the node."""
    match node:
        case ast.Compare(ops=[op, *_]):
            for other in _COMPARE[type(op)]:
                yield _with(node, ops=[other(), *node.ops[1:]])
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            yield _with(node, op=_ARITHMETIC[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case _:
            pass


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Yield each node that may be changed, by its parent, field and index. Annotations and decorators are skipped."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "bases"}:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield tree, name, index
                yield from places(node)


def mutants(path: Path) -> Iterator[Mutant]:
    for place, where in enumerate(places(ast.parse(path.read_text()))):
        node = _get(*where)
        for choice, new in enumerate(change(node)):
            yield Mutant(path, place, choice, f"{path}:{getattr(node, 'lineno', 0)}: {_brief(node)}  →  {_brief(new)}")


def build(mutant: Mutant) -> CodeType:
    tree = ast.parse(mutant.path.read_text())
    parent, name, index = list(places(tree))[mutant.place]
    node = _get(parent, name, index)
    new = list(change(node))[mutant.choice]
    _put(parent, name, index, ast.fix_missing_locations(ast.copy_location(new, node)))
    return compile(tree, str(mutant.path), "exec")


def _get(parent: ast.AST, name: str, index: int | None) -> ast.AST:
    held = getattr(parent, name)
    node: ast.AST = held if index is None else held[index]
    return node


def _put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _brief(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:100]


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the mutant in place of the module."""

    def __init__(self, path: Path, code: CodeType) -> None:
        parts = path.with_suffix("").parts[1:]
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.path, self.code = path, code

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        package = self.path.name == "__init__.py"
        spec = importlib.util.spec_from_loader(name, self, is_package=package)
        if spec is not None and package:
            spec.submodule_search_locations = [str(self.path.parent)]
        return spec

    def get_source(self, fullname: str) -> str:
        return self.path.read_text()

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class _SameExamples:
    """Makes hypothesis use the same examples in each run, without shrinking: only whether a test fails counts."""

    @staticmethod
    def pytest_configure() -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        hypothesis.settings.load_profile("mutants")


class Outcome(NamedTuple):
    passed: bool
    cpu_s: float


def run(tests: Sequence[str], instead: _Instead | None, cpu_max_s: float, *, shown: bool = False) -> Outcome:
    """Run the tests in a separate process, on the mutant if there is one."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_max_s), int(cpu_max_s) + 1))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            if not shown:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
            if instead is not None:
                sys.meta_path.insert(0, instead)
            code = int(pytest.main([*_OPTIONS, *tests], plugins=[_SameExamples()]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + _WALL_TIMES * cpu_max_s
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)
    return Outcome(status == 0, used.ru_utime + used.ru_stime)


def tests_of(path: Path) -> tuple[str, ...]:
    """Return the module's tests; none if only tests with sockets reach it."""
    return TESTS.get(path.relative_to(CORE).parts[0], ())


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tools.mutants")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=12)
    options.add_argument("--only", default="", help="a module or folder below core/, such as admission/limiter.py")
    options.add_argument("--per-module", type=int, default=1000, help="at most so many of each module")
    options.add_argument("--again", type=Path, help="the output of a run: only those that lived in it")
    given = options.parse_args()
    os.nice(19)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="mutants-")
    paths = [path for path in sorted(CORE.rglob("*.py")) if tests_of(path) and path.is_relative_to(CORE / given.only)]
    draw = random.Random(given.seed)  # noqa: S311
    ends_at = time.monotonic() + 60 * given.minutes
    limits: dict[tuple[str, ...], float] = {}
    for tests in {tests_of(path): None for path in paths}:
        usual = run(tests, None, 600)
        if not usual.passed:
            run(tests, None, 600, shown=True)
            print("mutants: these tests fail without a mutant, so they can tell nothing:", *tests)  # noqa: T201
            return 1
        limits[tests] = _CPU_TIMES * usual.cpu_s + _CPU_MORE_S
    drawn = [mutant for path in paths for mutant in _sample(draw, list(mutants(path)), given.per_module)]
    draw.shuffle(drawn)
    if given.again is not None:
        lived = {line.removeprefix(_LIVES) for line in given.again.read_text().splitlines() if line.startswith(_LIVES)}
        drawn = [mutant for mutant in drawn if mutant.said in lived]
    killed: Counter[Path] = Counter()
    tried: Counter[Path] = Counter()
    for mutant in drawn:
        if time.monotonic() > ends_at:
            break
        tests = tests_of(mutant.path)
        tried[mutant.path] += 1
        if run(tests, _Instead(mutant.path, build(mutant)), limits[tests]).passed:
            print(f"{_LIVES}{mutant.said}", flush=True)  # noqa: T201
        else:
            killed[mutant.path] += 1
    print(f"\nseed {given.seed}: {sum(tried.values())} of {len(drawn)} mutants")  # noqa: T201
    print("| module | killed | of |\n|---|---|---|")  # noqa: T201
    for path in sorted(tried):
        print(f"| `{path.relative_to(CORE)}` | {killed[path]} | {tried[path]} |")  # noqa: T201
    print(f"| all | {killed.total()} ({killed.total() / max(tried.total(), 1):.0%}) | {tried.total()} |")  # noqa: T201
    return 0


def _sample(draw: random.Random, all_of_it: list[Mutant], most: int) -> list[Mutant]:
    return draw.sample(all_of_it, min(len(all_of_it), most))


if __name__ == "__main__":
    sys.exit(main())

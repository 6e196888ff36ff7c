"""The command line for people: tables that fit, beginnings of ids, guesses at what was meant, --watch, tab completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.test_api import live, streaming
from admin.test_commands import as_json, hangup
from hangup.cli.main import make_parser
from hangup.cli.ps import shortened
from hangup.cli.settings import _limit_groups
from hangup.cli.table import Column, fitted
from hangup.config.limits import LimitSettings
from hangup.config.schema import Settings, scalar_fields
from hangup.terminal import cells
from support.processes import HANGUP, Gateway, StandIn, gateway_and_engine
from support.terminal import Terminal

TEXT = st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1, max_size=30)
COLUMNS = (Column("ID"), Column("NAME", least=6, rank=1), Column("N", right=True, rank=2), Column("WHY", least=5, rank=3))


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Gateway, StandIn]]:
    with gateway_and_engine() as made:
        yield made


@given(st.lists(st.tuples(st.just("id-of-a-row"), TEXT, TEXT, TEXT), max_size=4), st.integers(11, 120))
def test_a_table_fits_and_keeps_what_matters(rows: list[tuple[str, ...]], width: int) -> None:
    lines = fitted(COLUMNS, rows, width)
    assert all(cells(line) <= width for line in lines) and len(lines) == len(rows) + 1
    assert all(line.startswith("id-of-a-row") for line in lines[1:])
    full = fitted(COLUMNS, rows, 0)
    assert all(text in line for row, line in zip(rows, full[1:], strict=True) for text in row), "a pipe gets everything"


@given(st.lists(st.text("abc", min_size=1, max_size=30), max_size=20, unique=True))
def test_short_ids_differ(ids: list[str]) -> None:
    short = shortened(ids)
    assert len(set(short)) == len(ids) and all(id.startswith(cut) for id, cut in zip(ids, short, strict=True))


def test_the_beginning_of_an_id_is_enough(pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with streaming(gateway, "hu-first-call"), streaming(gateway, "hu-fine-call"):
        assert "hu-first-call" in hangup(gateway, "trace", "hu-fir").stdout
        several = hangup(gateway, "kill", "hu-fi")
        assert several.returncode == 1 and "is the beginning of several ids: hu-fi" in several.stderr
        assert sorted(live(gateway)) == ["hu-fine-call", "hu-first-call"], "none was killed on a guess"
        assert "killed hu-fine-call" in hangup(gateway, "kill", "hu-fine").stdout
        assert "killed hu-first-call" in hangup(gateway, "kill", "hu-first-call").stdout
    assert "hu-first-call" in hangup(gateway, "trace", "hu-firs").stdout, "also after its end"
    assert "not live: hu-fir" in hangup(gateway, "kill", "hu-fir").stdout


def test_nothing_is_ended_or_drained_that_was_not_named(pair: tuple[Gateway, StandIn]) -> None:
    """A variable that is not set names nothing, and what has just ended is not the beginning of something else."""
    gateway, _ = pair
    with streaming(gateway, "req-1"):
        assert "killed req-1" in hangup(gateway, "kill", "req-1").stdout
    with streaming(gateway, "req-12"):
        assert "an id is empty" in hangup(gateway, "kill", "").stderr
        assert "not live: req-1" in hangup(gateway, "kill", "req-1").stdout and live(gateway) == ["req-12"]
    assert "an id is empty" in hangup(gateway, "jobs", "cancel", "").stderr
    for name in ("", "127.", "128.0.0.1"):
        assert f"there is no backend {name}" in hangup(gateway, "drain", name).stderr


def test_empty_lists_say_so(pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    assert hangup(gateway, "ps").stdout == "no live calls\n"
    assert hangup(gateway, "jobs", "ls").stdout == "no active jobs (--all lists ended ones, too)\n"
    with streaming(gateway, "somebody"):
        assert hangup(gateway, "ps", "--tenant", "nobody").stdout == "no live call matches the filter\n"


def test_the_list_of_jobs_is_what_jobs_shows_and_an_address_needs_no_scheme(pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair

    def run(*words: str) -> str:
        done = subprocess.run([*HANGUP, *words], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    assert run("jobs", "--admin", gateway.admin_url.removeprefix("http://")) == "no active jobs (--all lists ended ones, too)\n"
    assert run("jobs", "--help").startswith("usage: hangup jobs")
    assert "required: SHELL\n" in run("completion")
    with Terminal("ps", "--admin", "http://127.0.0.1:9", width=50) as terminal:
        assert terminal.wait() == 1
    assert "\n  hint: start one with `hangup serve`, or give\n    its admin URL with --admin or HANGUP" in terminal.text


def test_the_data_port_is_no_admin_port(pair: tuple[Gateway, StandIn]) -> None:
    done = subprocess.run([*HANGUP, "ps", "--admin", pair[0].url], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "that is not an admin port" in done.stderr and "{" not in done.stderr


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        (["pss"], "did you mean ps?"),
        (["ps", "--tenat", "x"], "did you mean --tenant?"),
        (["serve", "--engine", "vlm"], "did you mean vllm?"),
        (["serve", "--admin-prt", "1"], "did you mean --admin-port?"),
        (["ps", "--sort", "agee"], "did you mean age?"),
        (["ps", "--phase", "wating"], "did you mean waiting?"),
        (["jobs", "lst"], "did you mean ls?"),
        (["simulate", "--load", "abc"], "argument --load: invalid value: 'abc'"),
    ],
)
def test_did_you_mean(words: list[str], guess: str) -> None:
    done = subprocess.run([*HANGUP, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and guess in done.stderr and len(done.stderr.splitlines()) <= 2, done.stderr


def test_at_a_terminal_of_80_columns(pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with streaming(gateway, "hu-0123456789abcdef0123"):
        with Terminal("ps", "--admin", gateway.admin_url) as terminal:
            assert terminal.wait() == 0
            terminal.wait_for("hu-01234567 ")
        assert b"\x1b[32manswering" in terminal.output
        assert max(map(len, terminal.text.splitlines())) <= 80
        with Terminal("ps", "--watch", "0.1s", "--admin", gateway.admin_url) as terminal:
            terminal.wait_for("hu-01234567", on_screen=True)
            assert as_json(gateway, "kill", "hu-01234567")["killed"]
            terminal.wait_for("^no live calls", on_screen=True)
            terminal.popen.send_signal(signal.SIGINT)
            assert terminal.wait() == 130


def test_watch_in_a_pipe_is_a_line_of_json_for_each_look(pair: tuple[Gateway, StandIn]) -> None:
    command = [*HANGUP, "backends", "--json", "--watch", "0.1s", "--admin", pair[0].admin_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
    assert all(look["backends"] for look in looks)


def test_json_where_it_was_missing(engine: StandIn) -> None:
    told = json.loads(subprocess.check_output([*HANGUP, "doctor", engine.url, "--json"], timeout=60))
    assert (told["engine"], told["verified"]) == ("standin", True)
    engines = json.loads(subprocess.check_output([*HANGUP, "engines", "--json"], timeout=60))["engines"]
    assert {"vllm", "ollama"} <= {row["name"] for row in engines}


def test_the_list_of_commands_loads_none_of_them() -> None:
    """The commands' modules take most of a second to load."""
    listed = (
        "import sys; from hangup.cli.main import make_parser; print(make_parser(load=False).format_help(), sorted(sys.modules))"
    )
    shown = subprocess.check_output([sys.executable, "-c", listed], text=True, timeout=60)
    assert "hangup.gateway" not in shown and "starlette" not in shown and "hangup.cli.parser" in shown
    env = {**os.environ, "COLUMNS": "80"}
    assert make_parser(load=False).format_help() == make_parser().format_help()
    assert "list the live calls" in subprocess.check_output([*HANGUP, "--help"], text=True, timeout=60, env=env)


def test_help_is_short_and_help_all_is_whole() -> None:
    serve = make_parser("serve")
    short = subprocess.check_output([*HANGUP, "serve", "--help"], text=True, timeout=60)
    whole = subprocess.check_output([*HANGUP, "serve", "--help-all"], text=True, timeout=60)
    names = [field.name for cls in (Settings, LimitSettings) for field in scalar_fields(cls)]
    assert [name for name in names if f"--{name.replace('_', '-')} " not in whole] == []
    assert len(short.splitlines()) < 100 < len(whole.splitlines()) and "--help-all" in short
    assert sorted(name for group in _limit_groups().values() for name in group) == sorted(
        field.name for field in scalar_fields(LimitSettings)
    )
    assert serve.parse_args(["serve", "--wedge-s", "3"]).setting_wedge_s == "3", "a hidden flag works"


def test_completion_knows_commands_options_values_and_ids(pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    env = {**os.environ, "HANGUP_ADMIN_URL": gateway.admin_url}

    def words(*given: str) -> set[str]:
        out = subprocess.check_output([*HANGUP, "completion", "words", "--", *given], text=True, env=env, timeout=60)
        return {line.partition("\t")[0] for line in out.splitlines()}

    assert words("und") == {"undrain"} and {"ls", "show", "cancel"} <= words("jobs", "")
    assert words("ps", "--phase", "wa") == {"waiting"} and words("serve", "--ups") == {"--upstream"}
    with streaming(gateway, "hu-complete-me"):
        assert words("kill", "hu-comp") == {"hu-complete-me"}
    (name,) = words("drain", "127.")
    assert name.startswith("127.0.0.1:")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_in_a_real_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        assert os.environ.get("SHELL_TESTS") != "required", f"{shell} is not installed"
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "_hangup"  # the name by which zsh finds it
    script.write_text(subprocess.check_output([*HANGUP, "completion", shell], text=True, timeout=60))
    subprocess.run([shell, "-n", str(script)], check=True, timeout=60)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HANGUP_ADMIN_URL": "http://127.0.0.1:9",
    }
    {"bash": _complete_in_bash, "zsh": _complete_in_zsh, "fish": _complete_in_fish}[shell](script, env)


def _complete_in_bash(script: Path, env: dict[str, str]) -> None:
    def replies(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        ask = (
            f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _hangup; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        return subprocess.check_output(["bash", "-c", ask], text=True, env=env, timeout=60).splitlines()

    assert replies("hangup", "jobs", "c") == ["cancel"] and replies("hangup", "kill", "") == [""]
    assert {"--tenant", "--watch"} <= set(replies("hangup", "ps", "--"))


def _complete_in_fish(script: Path, env: dict[str, str]) -> None:
    def replies(line: str) -> list[str]:
        ask = f"source {script}; complete -C '{line}'"
        shown = subprocess.check_output(["fish", "--no-config", "-c", ask], text=True, env=env, timeout=60)
        return [row.partition("\t")[0] for row in shown.splitlines()]

    assert replies("hangup jobs c") == ["cancel"] and replies("hangup kill ") == []
    assert {"--tenant", "--watch"} <= set(replies("hangup ps --"))


def _complete_in_zsh(script: Path, env: dict[str, str]) -> None:
    """As the help says: the script is a file in `fpath`. Options are listed at the first Tab, and one that fits is inserted."""
    with Terminal("-f", "-i", command=["zsh"], width=120, env={**env, "HOME": str(script.parent)}) as terminal:
        terminal.type(f"fpath=({script.parent} $fpath); autoload -Uz compinit; compinit -u -D; PS1='%% '; echo rea''dy\n")
        terminal.wait_for("ready")
        terminal.type("hangup ps --\t")
        terminal.wait_for("--tenant +-- only calls with this tenant")
        terminal.type("\x15hangup kill \t")  # Ctrl-U; there is no gateway, so no id either, and no other command
        terminal.type("\x15hangup jobs c\t")
        terminal.wait_for("hangup jobs cancel")
        assert "kill kill" not in terminal.text


def test_the_version_is_quick() -> None:
    """CPU time, because others use the machine, too."""
    code = "import time, hangup.cli.main as m; m.main(['--version']); print(time.process_time())"
    best = min(
        float(subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).splitlines()[-1]) for _ in range(3)
    )
    assert best < 0.5, "it loads more than it needs"
    loaded = subprocess.check_output(
        [sys.executable, "-c", "import sys, hangup.cli.main as m; m.main(['--version']); print(*sys.modules)"],
        text=True,
        timeout=60,
    )
    assert not re.search(r"\b(uvloop|numpy|starlette|asyncio|hangup\.gateway)\b", loaded)

"""Counts the modules that each command loads at its start; `make bench ARGS=start` measures the seconds."""

from __future__ import annotations

import subprocess
import sys


def loaded(code: str) -> set[str]:
    """Return the modules that this code loads, beyond those of a bare interpreter."""
    code = f"import sys; before = set(sys.modules)\n{code}\nsys.stderr.write(' '.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stderr.split())


def command(*arguments: str) -> str:
    call = f"from hangup.cli.main import main\ntry: main({list(arguments)!r})\nexcept SystemExit: pass"
    return f"{call}\nsys.stdout.flush()"


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "hangup"}


def test_importing_the_package_loads_nothing_else_of_it() -> None:
    modules = loaded("import hangup")
    assert own(modules) == {"hangup"}
    assert len(modules) <= 45, sorted(modules)


def test_the_version_loads_no_command() -> None:
    modules = loaded(command("--version"))
    assert own(modules) == {"hangup", "hangup.cli", "hangup.cli.main", "hangup.errors"}
    assert len(modules) <= 60, sorted(modules)


def test_a_client_command_loads_no_gateway() -> None:
    modules = loaded(command("ps", "--help"))
    assert not modules & {"hangup.gateway.gateway", "hangup.engine", "uvloop", "uvicorn", "starlette"}


def test_the_gateway_in_front_of_an_engine_loads_no_engine() -> None:
    modules = loaded(command("serve", "--help"))
    heads = {name.partition(".")[0] for name in modules}
    assert "hangup.gateway.server" in modules
    assert not heads & {"numpy", "torch", "pydantic", "httpx", "aiohttp", "cryptography"}, sorted(heads)
    assert not {name for name in own(modules) if name.startswith("hangup.engine.serving")}

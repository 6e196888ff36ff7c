"""The action for workflows, run as a runner would: its script, with the inputs in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.processes import StandIn
from support.waiting import PATIENCE_S

ACTION = Path(__file__).parent.parent.parent / "deploy/actions/probe/action.yml"
# Instead of an environment with hangup from the package index: this one.
_PYTHON = f"""#!/bin/sh
mkdir -p "$3/bin" && printf '#!/bin/sh\\n' > "$3/bin/pip"
printf '#!/bin/sh\\nexec {sys.executable} -m hangup "$@"\\n' > "$3/bin/hangup" && chmod +x "$3/bin/pip" "$3/bin/hangup"
"""


@pytest.mark.parametrize(("inputs", "status"), [({}, 1), ({"fail-on": "broke", "api-key-env": "A_KEY"}, 0)])
def test_the_action_probes_and_writes_a_summary(tmp_path: Path, inputs: dict[str, str], status: int) -> None:
    action = yaml.safe_load(ACTION.read_text())
    (tmp_path / "python3").write_text(_PYTHON)
    (tmp_path / "python3").chmod(0o755)
    (step,) = action["runs"]["steps"]
    with StandIn(token_s=0.005, prefill_s=0.02, slots=3, deaf=True) as engine:
        inputs = {"url": engine.url, "cases": "stream-fin", "flags": "--slots 3 --rest 1.2 --within 0.6", **inputs}
        values = {name: inputs.get(name, row.get("default", "")) for name, row in action["inputs"].items()}
        asked = {name: value.removeprefix("${{ inputs.").removesuffix(" }}") for name, value in step["env"].items()}
        given = {name: values[key] for name, key in asked.items()}
        path = f"{tmp_path}:{os.environ['PATH']}"
        places = {"PATH": path, "RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "A_KEY": "k"}
        done = subprocess.run(
            ["bash", "-c", step["run"]],
            env={**os.environ, **given, **places},
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * PATIENCE_S,
        )
    assert done.returncode == status, done.stderr
    assert "| mid-stream, closes | never stopped" in (tmp_path / "summary").read_text()
    assert (tmp_path / "hangup-probe.xml").exists() and (tmp_path / "hangup-probe.html").exists()

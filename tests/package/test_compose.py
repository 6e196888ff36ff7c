"""deploy/compose: the files fit each other, and hangup accepts its settings. `make test-container` runs them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hangup.cli.main import main
from hangup.config import LimitSettings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
ENGINES = ["vllm.yaml", "llamacpp.yaml"]


def loaded(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text()))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_where_hangup_looks_for_it(name: str) -> None:
    file = loaded(name)
    assert file["include"] == ["common.yaml"]
    (engine,) = file["services"].values()
    (backend,) = tomllib.loads((FOLDER / "hangup.toml").read_text())["backend"]
    (alias,) = engine["networks"]["default"]["aliases"]
    assert backend["url"] == f"http://{alias}:{engine['command'][engine['command'].index('--port') + 1]}"


def test_files_that_are_mounted_exist() -> None:
    for name, service in loaded("common.yaml")["services"].items():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (FOLDER / source).exists(), f"{name}: {source}"
    volumes = {v.partition(":")[0] for s in loaded("common.yaml")["services"].values() for v in s["volumes"]}
    assert {volume for volume in volumes if "/" not in volume} == set(loaded("common.yaml")["volumes"])


def test_hangup_accepts_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(FOLDER / "hangup.toml"), "--file-only"]) == 0, capsys.readouterr()
    settings = tomllib.loads((FOLDER / "hangup.toml").read_text())
    hangup = loaded("common.yaml")["services"]["hangup"]
    assert settings["admin_token_env"] in hangup["environment"]
    assert int(hangup["stop_grace_period"].removesuffix("s")) > settings["limits"]["drain_s"] + LimitSettings().exit_s
    assert hangup["read_only"] and hangup["cap_drop"] == ["ALL"] and (ROOT / hangup["build"]["dockerfile"]).exists()


def test_prometheus_scrapes_the_admin_port_with_the_token() -> None:
    common, prometheus = loaded("common.yaml"), loaded("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    (secret,) = common["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}" and secret in common["secrets"]
    (target,) = job["static_configs"][0]["targets"]
    settings = tomllib.loads((FOLDER / "hangup.toml").read_text())
    assert target == f"{settings['admin_names']}:8081" and "hangup" in common["services"] and "hangup" in job["job_name"]
    mounted = [volume.split(":")[1] for volume in common["services"]["prometheus"]["volumes"]]
    assert set(prometheus["rule_files"]) <= set(mounted)
    assert all(re.search(r":[\w.-]+$", service["image"]) for service in common["services"].values())  # pinned

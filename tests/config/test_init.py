"""`hangup init`: a file for the engine that runs here, or with the settings of LiteLLM."""

from __future__ import annotations

import hashlib
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from hangup.cli import init
from hangup.cli.main import main
from hangup.config.load import load
from support.processes import Gateway, StandIn

LITELLM = """
model_list:
  - model_name: gpt
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 100, tpm: 2000}
  - model_name: llama
    litellm_params:
      model: hosted_vllm/meta-llama/Llama-3.1-8B
      api_base: os.environ/LLAMA_URL
      max_parallel_requests: 32
      weight: 2
    model_info: {mode: chat}
  - model_name: llama
    litellm_params: {model: hosted_vllm/meta-llama/Llama-3.1-8B, api_base: "http://10.0.0.2:8000/v1", api_key: planted-key}
  - model_name: claude
    litellm_params: {model: anthropic/claude-x, api_key: os.environ/ANTHROPIC_API_KEY, output_cost_per_token: 0.000015}
  - model_name: cloud
    litellm_params: {model: azure/gpt, api_base: "https://x.openai.azure.com", api_key: os.environ/AZ}
  - model_name: small
    litellm_params: {model: ollama_chat/qwen3}
  - model_name: gpt
    litellm_params: {model: openai/gpt-4o-mini, api_key: os.environ/OTHER_KEY}
litellm_settings: {drop_params: true, request_timeout: 300, num_retries: 3}
router_settings: {model_group_alias: {fast: llama}}
general_settings: {master_key: planted-master, database_url: "postgresql://planted"}
environment_variables: {X: planted-variable}
"""


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLAMA_URL", "http://10.0.0.1:8000/v1/")


def test_litellm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(LITELLM)
    assert main(["init", "--from-litellm", "config.yaml"]) == 0
    settings = load(Path("hangup.toml")).settings
    assert [(b.url, b.engine, b.models, b.api_key_env) for b in settings.backend] == [
        ("https://api.openai.com/v1", "auto", ("gpt-4o", "gpt-4o-mini"), "OPENAI_API_KEY"),
        ("http://10.0.0.1:8000/v1", "vllm", ("meta-llama/Llama-3.1-8B",), ""),
        ("http://10.0.0.2:8000/v1", "vllm", ("meta-llama/Llama-3.1-8B",), "API_KEY_10_0_0_2_8000"),
        ("https://api.anthropic.com", "auto", ("claude-x",), "ANTHROPIC_API_KEY"),
        ("http://127.0.0.1:11434", "ollama", ("qwen3",), ""),
    ]
    assert (settings.backend[1].slots, settings.backend[1].weight) == (32, 2.0)
    assert settings.backend[3].price_per_million_tokens == 15
    names = {alias.name: alias.model for alias in settings.alias}
    llama = "meta-llama/Llama-3.1-8B"
    assert names == {"gpt": "gpt-4o", "llama": llama, "claude": "claude-x", "small": "qwen3", "fast": llama}
    assert (settings.limits.total_s, settings.limits.failover_max) == (300, 3)
    assert settings.tenant[0].key_sha256 == [hashlib.sha256(b"planted-master").hexdigest()]
    text, said = Path("hangup.toml").read_text(), capsys.readouterr().err
    for lost in (
        *("gpt: rpm = 100", "gpt: tpm = 2000", "llama: model_info", "cloud: azure has an API of its own", "database_url"),
        *("set the environment variable API_KEY_10_0_0_2_8000", "a second key (OTHER_KEY)", "gpt is gpt-4o at one backend"),
        *(
            "claude: the translation of OpenAI's API",
            "litellm_settings: drop_params",
            "environment_variables, except for addresses",
        ),
    ):
        assert lost in said and lost in " ".join(text.replace("\n#", "").split()), lost
    assert "planted" not in text + said


PATTERNS = """
model_list:
  - {model_name: "openai/*", litellm_params: {model: "openai/*", api_key: os.environ/OPENAI_API_KEY}}
  - {model_name: "groq/*", litellm_params: {model: "groq/*"}}
  - {model_name: "*", litellm_params: {model: "openai/*", api_base: "http://10.0.0.9:1/v1"}}
  - {model_name: own, litellm_params: {model: hosted_vllm/own, api_base: "http://10.0.0.1:8000"}}
  - {model_name: unfinished}
"""


MORE = """
include: [more.yaml]
environment_variables: {VLLM_BASE: "http://10.0.0.3:8000/v1", OWN_KEY: planted-own}
credential_list:
  - {credential_name: main, credential_values: {api_key: os.environ/OPENAI_API_KEY}}
model_list:
  - {model_name: sonnet, litellm_params: {model: claude-3-5-sonnet-20241022, api_key: os.environ/ANTHROPIC_API_KEY}}
  - {model_name: flash, litellm_params: {model: gemini-2.0-flash, api_key: os.environ/GEMINI_API_KEY}}
  - {model_name: riddle, litellm_params: {model: riddle-1, api_key: os.environ/RIDDLE_KEY}}
  - {model_name: gpt-5, litellm_params: {model: gpt-5, litellm_credential_name: main, max_parallel_requests: "5"}}
  - {model_name: own, litellm_params: {model: hosted_vllm/qwen, api_base: os.environ/VLLM_BASE, api_key: os.environ/OWN_KEY}}
  - {model_name: like, litellm_params: {model: openai_like/foo, api_base: "https://gw.example.com/llm"}}
  - {model_name: nim, litellm_params: {model: nvidia_nim/meta/llama3, api_key: os.environ/NIM_KEY}}
litellm_settings: {request_timeout: "600"}
"""


def test_what_litellms_documentation_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Included files, its own variables, credentials by name, models without a provider, numbers in quotes."""
    (tmp_path / "config.yaml").write_text(MORE)
    more = "model_list: [{model_name: extra, litellm_params: {model: hosted_vllm/extra, api_base: 'http://10.0.0.4:8000'}}]\n"
    (tmp_path / "more.yaml").write_text(more)
    assert main(["init", "--from-litellm", "config.yaml"]) == 0
    settings, said = load(Path("hangup.toml")).settings, " ".join(capsys.readouterr().err.split())
    assert [(b.url, b.models, b.api_key_env) for b in settings.backend] == [
        ("https://api.anthropic.com", ("claude-3-5-sonnet-20241022",), "ANTHROPIC_API_KEY"),
        ("https://api.openai.com/v1", ("gpt-5",), "OPENAI_API_KEY"),
        ("http://10.0.0.3:8000/v1", ("qwen",), "OWN_KEY"),
        ("https://gw.example.com/llm", ("foo",), ""),
        ("https://integrate.api.nvidia.com/v1", ("meta/llama3",), "NIM_KEY"),
        ("http://10.0.0.4:8000", ("extra",), ""),
    ]
    assert settings.backend[1].slots == 5 and settings.limits.total_s == 600
    for lost in (
        *("flash: gemini has an API of its own", "riddle: riddle-1 has no provider before a /"),
        *(
            "OWN_KEY stands in LiteLLM's environment_variables",
            "like: LiteLLM calls https://gw.example.com/llm/chat/completions",
        ),
    ):
        assert lost in said
    assert "planted" not in Path("hangup.toml").read_text() + said
    (tmp_path / "more.yaml").unlink()
    assert main(["init", "--from-litellm", "config.yaml", "--force"]) == 1
    assert "more.yaml cannot be read" in capsys.readouterr().err


def test_a_pattern_does_not_get_the_calls_of_other_backends(capsys: pytest.CaptureFixture[str]) -> None:
    """`openai/*` beside an engine of one's own: with `*` as its models, OpenAI would get calls for that engine as well."""
    Path("config.yaml").write_text(PATTERNS)
    assert main(["init", "--from-litellm", "config.yaml"]) == 0
    models = {
        backend.url: backend.models for backend in load(Path("hangup.toml"), env={"OPENAI_API_KEY": "k"}).settings.backend
    }
    assert "gpt-*" in models["https://api.openai.com/v1"]
    assert models["https://api.groq.com/openai/v1"] == models["http://10.0.0.9:1/v1"] == ()  # asked for their lists
    assert models["http://10.0.0.1:8000"] == ("own",)
    assert not [
        url for url, given in models.items() if any(fnmatchcase("own", each) for each in given) and "10.0.0.1" not in url
    ]
    assert "entry 5 of model_list (unfinished): no model_name, or no litellm_params.model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "config.yaml:1:5: not valid YAML: "),
        ("- a", "config.yaml: expected the configuration of LiteLLM's proxy"),
        (None, "config.yaml cannot be read: "),
    ],
)
def test_a_file_that_is_not_litellms(text: str | None, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        Path("config.yaml").write_text(text)
    assert main(["init", "--from-litellm", "config.yaml"]) == 1
    assert expected in capsys.readouterr().err and not Path("hangup.toml").exists()


@pytest.mark.parametrize("entry", [{}, {"model_name": 3, "litellm_params": 4}, "x", {"litellm_params": {"model": "openai/"}}])
def test_odd_entries_are_no_crash(entry: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    Path("config.yaml").write_text(yaml.safe_dump({"model_list": [entry], "router_settings": {"model_group_alias": [1]}}))
    assert main(["init", "--from-litellm", "config.yaml"]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_litellm_needs_a_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["init", "--from-litellm", "config.yaml"]) == 1
    assert "pip install 'hangup[litellm]'" in capsys.readouterr().err


def test_the_engine_that_runs_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the known ports, one has an engine, one a hangup gateway before it, and one nothing."""
    with StandIn() as engine, Gateway(engine.url) as gateway:
        at = int(engine.url.rpartition(":")[2])
        monkeypatch.setattr(init, "KNOWN_PORTS", {at: "engine", gateway.address[1]: "gateway", 9: "nothing"})
        monkeypatch.setattr(init, "_PORTS_OF_OURS", (at, 8090))
        assert main(["init"]) == 0
        settings = load(Path("hangup.toml")).settings
        assert [(backend.url, backend.engine) for backend in settings.backend] == [(engine.url, "standin")]
        assert (settings.port, settings.admin_port) == (8090, 8091)
        assert f"An engine has the port {at}" in capsys.readouterr().err
        assert main(["init"]) == 1
        assert "hangup.toml exists already\n  hint: --force" in capsys.readouterr().err
        assert main(["init", "--force", "--upstream", engine.url, "--upstream", "http://127.0.0.1:9"]) == 0
        found = [(backend.url, backend.engine) for backend in load(Path("hangup.toml")).settings.backend]
        assert found == [(engine.url, "standin"), ("http://127.0.0.1:9", "auto")]
        assert "http://127.0.0.1:9 was not recognised: " in capsys.readouterr().err


def test_no_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(init, "KNOWN_PORTS", {9: "nothing"})
    assert main(["init", "-"]) == 0
    shown = capsys.readouterr()
    assert "No engine answered on 127.0.0.1 at 9 (nothing)" in shown.err and "[[backend]]\nurl" not in shown.out
    Path("hangup.toml").write_text(shown.out)
    assert load(Path("hangup.toml")).settings.backend == ()

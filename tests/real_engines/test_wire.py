"""What real engines send over HTTP: the fixtures of the adapters' tests, and the fields of their answers."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

from hangup.gateway.backends.adapters import ADAPTERS, Seen
from real_engines.real import CHAT, Engine, recognised, settle
from support.processes import Gateway
from support.raw import Client, ask

FIGURES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total", "vllm:cache_config")
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "engines"


def test_the_wire_is_as_captured(real: Engine) -> None:
    """With HANGUP_CAPTURE=1, write what the adapters rely on to the fixtures; otherwise, compare its shape."""
    adapter = ADAPTERS[real.name]
    assert ask(real.address, CHAT, real.body(stream=False, tokens=3)).status == 200  # slots say more once they were used
    settle(real)
    captured: dict[str, Any] = {"engine": real.name, "server": "", "models": "{}"}
    if real.name != "transformers":  # which looks for its list on a hub
        with urllib.request.urlopen(f"{real.url}/v1/models", timeout=10) as answer:
            captured |= {"server": answer.headers.get("server", ""), "models": answer.read().decode()}
    if adapter.status_path:
        captured["idle"] = real.get(adapter.status_path)
        client = Client(real.address)
        client.post(CHAT, real.body(stream=True))
        client.read_until(b'"content"')
        time.sleep(1.1)
        captured |= {"busy": real.get(adapter.status_path), "running": 1}
        client.fin()
        status = adapter.read_status(Seen(200, "", captured["busy"].encode()))
        assert status is not None and status.running == 1
    for name in ("idle", "busy"):
        if captured.get(name, "").startswith("#"):  # of hundreds of figures, those that the adapter looks at
            captured[name] = "\n".join(line for line in captured[name].splitlines() if line.startswith(FIGURES)) + "\n"
    if os.environ.get("HANGUP_CAPTURE"):
        FIXTURES.mkdir(parents=True, exist_ok=True)
        text = json.dumps(captured, indent=1).replace(real.model, "tiny")
        (FIXTURES / f"{real.name}.json").write_text(text + "\n")
    else:
        fixture = json.loads((FIXTURES / f"{real.name}.json").read_text())
        for name, page in fixture.items():
            missing = shape(page) - shape(captured.get(name, ""))
            assert not missing, f"{name}: the fixture has what the engine does not say: {missing}"
    settle(real)


def shape(page: Any) -> set[str]:
    """Return the names of a page's fields or figures; of anything else, only that it is there."""
    text = str(page)
    if text.startswith(("{", "[")):
        return paths(json.loads(text))
    if ":" in text and "\n" in text:
        return {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    return {"said"} if text else set()


def test_an_assembled_answer_has_what_a_whole_one_has(real: Engine) -> None:
    """The assembled answer has every field of the engine's own non-streaming answer."""
    asked = real.body(stream=False, tokens=3)
    whole = ask(real.address, CHAT, asked).json()
    with Gateway(real.url) as gateway:
        recognised(gateway, real)
        ours = ask(gateway.address, CHAT, asked).json()
    missing = paths(whole) - paths(ours)
    assert not {path for path in missing if "timings" not in path and "__verbose" not in path}, missing


def paths(value: Any, at: str = "") -> set[str]:
    """Return the names of all fields, at any depth."""
    if isinstance(value, list):
        return set().union(*(paths(item, f"{at}[]") for item in value)) if value else set()
    if not isinstance(value, dict):
        return {at}
    return {at}.union(*(paths(item, f"{at}.{name}") for name, item in value.items()))

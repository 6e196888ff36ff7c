"""Each adapter against a stand-in that imitates its engine's HTTP API, faults included."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hangup.cli.main import main
from hangup.gateway.backends.adapters import ADAPTERS, Seen, recognise
from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Client, ask
from support.waiting import wait_until

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "engines"
SLOW: dict[str, Any] = {"slots": 4, "prefill_s": 0.02, "token_s": 0.02, "answer_tokens": 2000}
LIKE = ["vllm", "sglang", "tgi", "llamacpp", "ollama", "tensorrt_llm", "lmdeploy"]
VERIFIED = [name for name in LIKE if name != "ollama"]


def recognised(gateway: Gateway, name: str) -> None:
    wait_until(lambda: any(row.get("change") == f"recognised as {name}" for row in gateway.log()), what=f"recognised as {name}")


def released(gateway: Gateway, result: str = "verified") -> float:
    rows = gateway.metrics()
    return sum(value for name, value in rows.items() if name.startswith("hangup_releases_total") and result in name)


def stream_until_token(gateway: Gateway, **headers: str) -> Client:
    client = Client(gateway.address)
    client.chat(stream=True, headers=headers)
    client.read_until(b"data:")
    return client


@pytest.mark.parametrize("name", LIKE)
def test_recognised_stopped_and_verified(name: str) -> None:
    """`--engine auto` recognises the engine; a hang-up stops it, and its own figures show that."""
    with StandIn(like=name, **SLOW) as engine, Gateway(engine.url) as gateway:
        recognised(gateway, name)
        client = stream_until_token(gateway)
        assert engine.stats()["running"] == 1
        client.fin()
        assert engine.wait_stopped()["finished"] == 0
        result = "verified" if name in VERIFIED else "unverified"
        wait_until(lambda: released(gateway, result) == 1, what="the release")
        metrics = gateway.metrics()
        assert metrics[f'hangup_zombies{{backend="{engine.url[7:]}"}}'] == 0
        assert metrics[f'hangup_backend_in_flight{{backend="{engine.url[7:]}"}}'] == 0


def test_a_clients_id_cannot_abort_anothers_call() -> None:
    """SGLang matches ids by prefix: a client with the id `h` must not abort everyone's calls."""
    with StandIn(like="sglang", **SLOW) as engine, Gateway(engine.url) as gateway:
        recognised(gateway, "sglang")
        stays = stream_until_token(gateway)
        leaves = stream_until_token(gateway, **{"X-Request-Id": "h"})
        rids = [json.loads(row["body"])["rid"] for row in engine.seen()]
        assert len({len(rid) for rid in rids}) == 1 and len(set(rids)) == 2 and "h" not in rids
        leaves.fin()
        wait_until(lambda: engine.stats()["running"] == 1, what="the one who left is gone")
        assert stays.read_some()
        stays.fin()


def test_sglang_hears_the_abort_while_the_connection_is_open() -> None:
    """After the close, this engine would ignore the abort and still answer 200; hangup never sends it that late."""
    with StandIn(like="sglang", **SLOW) as engine, Gateway(engine.url) as gateway:
        recognised(gateway, "sglang")
        for _ in range(10):
            stream_until_token(gateway).fin()
        stats = engine.wait_idle()
        assert stats["aborted"] == 10 and stats["finished"] == 0


def test_llama_server_calls_get_slots_of_their_own_and_the_conversation_id_is_stripped() -> None:
    with StandIn(like="llamacpp", **SLOW) as engine, Gateway(engine.url) as gateway:
        recognised(gateway, "llamacpp")
        clients = [stream_until_token(gateway, **{"X-Conversation-Id": "keep-me"}) for _ in range(4)]
        rows = engine.seen()
        assert sorted(json.loads(row["body"])["id_slot"] for row in rows) == [0, 1, 2, 3]
        assert not any("x-conversation-id" in row["headers"] for row in rows)
        assert gateway.metrics()[f'hangup_backend_limit{{backend="{engine.url[7:]}"}}'] == 4  # read from the engine
        for client in clients:
            client.fin()
        engine.wait_idle()


def test_the_reapers_own_questions_do_not_keep_llama_server_from_noticing() -> None:
    """It notices a client that left before the first token only in a second without requests; the reaper's pace leaves that
    second."""
    slow = SLOW | {"prefill_s": 40.0}
    with StandIn(like="llamacpp", **slow) as engine, Gateway(engine.url) as gateway:
        recognised(gateway, "llamacpp")
        client = Client(gateway.address)
        client.chat(stream=True)
        wait_until(lambda: engine.stats()["running"] == 1, what="the prefill")
        client.fin()
        assert engine.wait_stopped()["tokens"] == 0, "it was noticed while the prompt was read"
        wait_until(lambda: released(gateway) == 1, what="the release")


def test_a_slot_of_a_stream_that_was_left_is_soon_given_on() -> None:
    """One slot; ten clients in turn disconnect mid-stream, and each gets the slot as soon as it is seen free."""
    with StandIn(like="llamacpp", **SLOW | {"slots": 1}) as engine, Gateway(engine.url) as gateway:
        recognised(gateway, "llamacpp")
        began = time.monotonic()
        for _ in range(10):
            stream_until_token(gateway).fin()
        assert time.monotonic() - began < 20, "a grace of three seconds each would take 30"
        wait_until(lambda: released(gateway) == 10, what="all releases")


def test_no_call_is_sent_to_a_slot_on_the_word_of_the_socket() -> None:
    """One slot, and an engine that notices after a second: hangup sends the next call when the slot is free, not before."""
    with StandIn(like="tensorrt_llm", **SLOW | {"slots": 1}) as engine, Gateway(engine.url, slots=1) as gateway:
        recognised(gateway, "tensorrt_llm")
        stream_until_token(gateway).fin()
        answer = ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1})
        assert answer.status == 200
        assert engine.stats()["waiting_peak"] <= 1 and engine.stats()["running_peak"] == 1
        sent = [row for row in engine.seen() if row["method"] == "POST"]
        assert len(sent) == 2


def test_vllm_is_never_sent_an_empty_list() -> None:
    with pytest.raises(AssertionError):
        ADAPTERS["vllm"].abort("")
    abort = ADAPTERS["vllm"].abort("hu-1")
    assert abort is not None and json.loads(abort.body)["request_ids"] == ["chatcmpl-hu-1", "cmpl-hu-1-0"]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("api.openai.com", "openai-hosted"),
        ("api.anthropic.com", "anthropic-hosted"),
        ("notopenai.com", "openai"),
        ("10.0.0.1", "openai"),
    ],
)
def test_hosted_apis_are_known_by_their_names_and_anything_else_is_generic(host: str, name: str) -> None:
    """hangup does not query a hosted API, and expects to verify a stop at neither."""
    paths = []

    async def get(path: str) -> Seen:
        paths.append(path)
        return Seen(404, "", b"")

    adapter, facts = asyncio.run(recognise(host, get))
    assert adapter.name == name and not facts.reports_status
    assert bool(paths) is (name == "openai")


def test_the_lists_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in ADAPTERS)


@pytest.mark.parametrize("name", LIKE)
def test_the_doctor_tells_what_it_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with StandIn(like=name, **SLOW) as engine:
        assert main(["doctor", engine.url]) == 0
        output = capsys.readouterr().out
        assert ADAPTERS[name].title in output
        assert ("0 running" in output) == (name in VERIFIED)
        assert all(row["method"] == "GET" for row in engine.seen())


def test_the_doctor_takes_nothing_else_for_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither any web server, nor a gateway, nor a gateway's admin port."""

    class Any404(BaseHTTPRequestHandler):
        status = 404

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Any404) as server, gateway_and_engine() as (gateway, engine):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for other, why in (
            (url, "GET /v1/models returned status 404"),
            (gateway.admin_url, "no LLM engine that hangup recognises"),
            (gateway.url, "it is a hangup gateway, not an engine"),
        ):
            assert main(["doctor", other]) == 1
            assert why in capsys.readouterr().err
        assert main(["doctor", url, "--engine", "openai"]) == 0, "whoever names it knows better"
        Any404.status = 401
        assert main(["doctor", url]) == 1
        assert "it requires an API key" in capsys.readouterr().err
        assert main(["doctor", engine.url]) == 0
        server.shutdown()


def test_the_doctor_of_a_dead_address_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "http://127.0.0.1:9"]) == 1
    assert "cannot connect" in capsys.readouterr().err


def fixtures() -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted(FIXTURES.glob("*.json"))]


@pytest.mark.parametrize("path", fixtures())
def test_real_answers_are_read(path: Path) -> None:
    """These answers were captured from the engines: only its own adapter recognises each, and understands its figures."""
    captured = json.loads(path.read_text())
    adapter = ADAPTERS[captured["engine"]]
    models = Seen(200, captured["server"], captured["models"].encode())
    assert [name for name, other in ADAPTERS.items() if other.recognises(models)] in ([adapter.name], [])
    if "busy" in captured:
        idle = adapter.read_status(Seen(200, "", captured["idle"].encode()))
        busy = adapter.read_status(Seen(200, "", captured["busy"].encode()))
        assert idle is not None and idle.work == 0
        assert busy is not None and busy.work == captured["running"]


def test_an_engine_is_added_by_one_file(tmp_path: Path) -> None:
    """A module in `gateway/backends/adapters` is enough: hangup knows it by name, and recognises the engine."""
    code = (
        "import asyncio\n"
        "import importlib.util, sys, pathlib\n"
        "home = pathlib.Path(importlib.util.find_spec('hangup.gateway.backends').origin).parent / 'adapters'\n"
        "spec = importlib.util.spec_from_file_location('hangup.gateway.backends.adapters', home / '__init__.py',\n"
        "                                              submodule_search_locations=[str(home), sys.argv[1]])\n"
        "module = importlib.util.module_from_spec(spec); sys.modules[spec.name] = module; spec.loader.exec_module(module)\n"
        'async def get(path): return module.Seen(200, \'\', b\'{"data": [{"id": "m", "owned_by": "newcomer"}]}\')\n'
        "print('newcomer' in module.ADAPTERS, asyncio.run(module.recognise('127.0.0.1', get))[0].title)\n"
    )
    (tmp_path / "newcomer.py").write_text(
        "from hangup.gateway.backends.adapters.base import EngineAdapter, Seen\n"
        "class Newcomer(EngineAdapter):\n"
        "    name = 'newcomer'\n"
        "    title = 'A new engine'\n"
        "    def recognises(self, models: Seen) -> bool:\n"
        "        return any(row.get('owned_by') == 'newcomer' for row in models.rows)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True A new engine\n", done.stderr

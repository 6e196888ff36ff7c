"""Real engines inside an application, through `hangup.sources` and `CancelToken`: when the client leaves, the model stops.

The engines are those that `make test-engines` sets up; without them these tests are skipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from library.harness import Served
from support.raw import Client, events
from support.waiting import PATIENCE_S

CACHE = os.environ.get("HANGUP_ENGINES_DIR", "")
SCRIPT = Path(__file__).resolve().parent / "inside.py"
ENVIRONMENTS = {"transformers": "tf", "llama_cpp": "lp", "mlx_lm": "mx", "vllm": "vl"}
WAYS = [
    ("transformers", "source"),
    ("transformers", "streamer"),
    ("transformers", "async_streamer"),
    ("transformers", "whole"),
    ("llama_cpp", "source"),
    ("llama_cpp", "whole"),
    ("mlx_lm", "source"),
    ("vllm", "source"),
]
MANY = 4000  # tokens: minutes of work
LONG = 2000  # words of a prompt: seconds of work


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    if not CACHE:
        pytest.skip("no real engines: `make test-engines` sets them up")
    python = Path(CACHE).resolve() / ENVIRONMENTS[request.param] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{request.param} is not set up in {CACHE}: make test-engines ENGINES={request.param}")
    with Served(request.param, str(Path(CACHE).resolve()), script=SCRIPT, python=str(python), start_s=300) as running:
        yield running


@pytest.mark.parametrize(("served", "way"), WAYS, indirect=["served"], ids=map("-".join, WAYS))
@pytest.mark.parametrize("leave", [Client.fin, Client.reset], ids=["fin", "rst"])
def test_a_client_that_leaves_in_the_middle_stops_the_model(served: Served, way: str, leave: Any) -> None:
    id = f"{way}-{leave.__name__}"
    client = served.post(way, id, tokens=MANY)
    if way != "whole":
        client.read_until(b"\r\n\r\n")
        client.read_some()
    served.wait_computed(id, 4)
    leave(client)
    assert_stopped(served, id, MANY // 2)


@pytest.mark.parametrize(("served", "way"), WAYS, indirect=["served"], ids=map("-".join, WAYS))
def test_a_client_that_leaves_before_the_first_token_stops_the_model(served: Served, way: str) -> None:
    """A step of the model cannot be interrupted: at most one is computed after the client left."""
    id = f"early-{way}"
    client = served.post(way, id, tokens=MANY, words=LONG)
    served.wait_running(id)
    before = served.work(id)["computed"]
    client.fin()
    assert_stopped(served, id, before + 2)


@pytest.mark.parametrize("served", ["llama_cpp"], indirect=True)
def test_llama_cpp_stops_while_it_reads_the_prompt(served: Served) -> None:
    client = served.post("source", "reading", tokens=MANY, words=LONG)
    served.wait_running("reading")
    time.sleep(0.5)  # so that it reads; if it does not yet, it must not begin
    client.fin()
    assert_stopped(served, "reading", 0)
    with served.post("source", "next", tokens=5) as client:
        assert client.read_answer().complete, "the next call finds the model in order"


def assert_stopped(served: Served, id: str, at_most: int) -> None:
    work = served.wait_ended(id, PATIENCE_S)
    served.wait_nothing_left()
    assert [ended["outcome"] for ended in work["ended"]] == ["client_gone"], work
    after = served.work(id)["computed"]  # a thread of the application's own may finish its step after the end
    assert after <= at_most, (work, after)
    assert not served.complaints()


@pytest.mark.parametrize(("served", "way"), [w for w in WAYS if w[1] == "source"], indirect=["served"])
def test_a_client_that_stays_gets_the_whole_answer(served: Served, way: str) -> None:
    with served.post(way, "stays", tokens=20) as client:
        answer = client.read_answer()
    chunks = events(answer.body)
    assert answer.complete and answer.status == 200 and chunks[-1]["choices"][0]["finish_reason"]
    work = served.wait_ended("stays", PATIENCE_S)
    assert 19 <= work["computed"] <= 22, work
    assert [ended["outcome"] for ended in work["ended"]] == ["completed"]

"""Hang-ups through real proxies: each case of the table in docs/proxies.md, with the files of deploy/proxies.

The engine is slow, and a hang-up comes between two of its tokens: a proxy passes it on AT_ONCE if the gateway ends the call
before the next token, LATE if only after one, and SWALLOWS it if the call completes for nobody. All cases run at the same
time, so the slow engine costs little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.http2_client import Http2Client
from support.processes import Gateway, StandIn
from support.proxies import INSTALLED, KINDS, program, proxy
from support.raw import Client
from support.waiting import PATIENCE_S, wait_until

if os.environ.get("PROXY_TESTS") != "required":
    pytest.skip("run `make test-proxies`", allow_module_level=True)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proxies.md"
AT_ONCE, LATE, SWALLOWED = "at once", "late", "swallowed"
PREFILL_S, TOKEN_S, TOKENS = 10.0, 3.0, 6
HEAD_S = 1.5  # for each of two calls, within the prefill


class Case(NamedTuple):
    """When and how a client leaves."""

    stream: bool
    after_a_token: bool
    leave: Callable[[Client], None]


CASES = {
    "during a stream, FIN": Case(True, True, Client.fin),
    "during a stream, RST": Case(True, True, Client.reset),
    "before the first token, FIN": Case(True, False, Client.fin),
    "before the first token, RST": Case(True, False, Client.reset),
    "no stream, FIN": Case(False, False, Client.fin),
    "no stream, RST": Case(False, False, Client.reset),
}
PASSED_ON = dict.fromkeys(CASES, AT_ONCE)
NOTICED_WHEN_WRITING = {case: LATE if how.stream else SWALLOWED for case, how in CASES.items()}
# A proxy that keeps the answer until it is complete: when the client sees a token, the engine has computed them all.
ONLY_BEFORE_THE_ANSWER = {case: SWALLOWED if how.after_a_token else AT_ONCE for case, how in CASES.items()}


class Variant(NamedTuple):
    """A way to configure a proxy, and what it makes of a hang-up."""

    kind: str
    name: str
    verdicts: dict[str, str]
    change: Callable[[str], str] = str

    def __str__(self) -> str:
        return f"{self.kind}, {self.name}"


def without(pattern: str) -> Callable[[str], str]:
    return lambda config: re.sub(pattern, "", config)


def instead(old: str, new: str) -> Callable[[str], str]:
    return lambda config: config.replace(old, new)


def only_proxy_pass(config: str) -> str:
    """nginx as in most examples: no setting but the address."""
    return "server { listen 8000; location / { proxy_pass http://127.0.0.1:8080; } }"


def with_fast_proxy(config: str) -> str:
    return f"experimental: {{fastProxy: {{}}}}\n{config}"


def buffered(config: str) -> str:
    """Traefik with a middleware that holds an answer back until it is complete."""
    used = config.replace("service: hangup\n", "service: hangup\n      middlewares: [whole]\n")
    whole = "  middlewares:\n    whole: {buffering: {memResponseBodyBytes: 1048576}}\n"
    return used.replace("  services:\n", f"{whole}  services:\n")


VARIANTS = [
    Variant("nginx", "as recommended", PASSED_ON),
    Variant("nginx", "only `proxy_pass`", PASSED_ON, only_proxy_pass),
    Variant("nginx", "`proxy_ignore_client_abort on`", NOTICED_WHEN_WRITING, instead("abort off;", "abort on;")),
    Variant("haproxy", "as recommended", PASSED_ON),
    Variant("haproxy", "without `option abortonclose`", NOTICED_WHEN_WRITING, without("option abortonclose.*")),
    Variant("caddy", "as recommended", PASSED_ON),
    Variant(
        "caddy", "`flush_interval -1`", NOTICED_WHEN_WRITING, instead("transport http", "flush_interval -1\n\t\ttransport http")
    ),
    Variant("envoy", "as recommended", PASSED_ON),
    Variant("traefik", "as recommended", PASSED_ON),
    Variant("traefik", "`experimental.fastProxy`", NOTICED_WHEN_WRITING, with_fast_proxy),
    Variant("traefik", "a `buffering` middleware", ONLY_BEFORE_THE_ANSWER, buffered),
]


CALLS = len(VARIANTS) * len(CASES)  # all at the same time


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """Play all cases through all variants at the same time; return the verdicts by variant."""
    present = [variant for variant in VARIANTS if program(variant.kind) is not None]
    with (
        StandIn(slots=CALLS, prefill_s=PREFILL_S, token_s=TOKEN_S, answer_tokens=TOKENS) as engine,
        Gateway(engine.url, slots=CALLS) as gateway,
        ThreadPoolExecutor(len(VARIANTS)) as threads,
    ):
        folders = [tmp_path_factory.mktemp(variant.kind) for variant in present]
        found = threads.map(partial(play, gateway, engine), present, folders)
        yield dict(zip(map(str, present), found, strict=True))


def play(gateway: Gateway, engine: StandIn, variant: Variant, folder: Path) -> dict[str, str]:
    with proxy(variant.kind, gateway.port, folder, variant.change) as port, ExitStack() as stack:
        models = {case: re.sub(r"\W", "-", f"{variant} {case}") for case in CASES}
        clients = {case: stack.enter_context(Client(("127.0.0.1", port))) for case in CASES}
        for case, client in clients.items():
            client.chat(model=models[case], stream=CASES[case].stream, max_tokens=TOKENS)
        wait_until(lambda: all(at_engine(engine, model) for model in models.values()), what="the calls in the engine")
        for after_a_token in (False, True):
            for case, client in clients.items():
                if CASES[case].after_a_token is after_a_token:
                    if after_a_token:
                        client.read_until(b"data: ")
                    elif CASES[case].stream:
                        wait_for_head(client)
                    CASES[case].leave(client)
        return {case: verdict(ended(gateway, model), CASES[case]) for case, model in models.items()}


def wait_for_head(client: Client) -> None:
    """Wait until the proxy has written the head: if it is still to be written, even a late proxy notices the hang-up by it. A
    proxy may hold it back until there is a body."""
    client.sock.settimeout(HEAD_S)
    with suppress(TimeoutError):
        client.read_until(b"\r\n\r\n")
    client.sock.settimeout(PATIENCE_S)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_a_proxy_makes_of_a_hang_up(variant: Variant, seen: dict[str, dict[str, str]]) -> None:
    if variant.kind in INSTALLED and program(variant.kind) is None:
        pytest.skip(f"no wheel of {variant.kind} for this machine")
    assert str(variant) in seen, f"apt-get install {variant.kind}"
    assert seen[str(variant)] == variant.verdicts


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    for variant in VARIANTS:
        row = next((line for line in text.splitlines() if line.startswith(f"| {variant} |")), "")
        assert [cell.strip() for cell in row.split("|")[2:-2]] == list(variant.verdicts.values()), variant
    for kind, (name, _) in KINDS.items():
        assert f"deploy/proxies/{name}" in text, kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_call_on_the_same_connection(kind: str, tmp_path: Path) -> None:
    """The proxy keeps its connection to the gateway, too: it must not hide the hang-up, nor serve another client's call."""
    if kind in INSTALLED and program(kind) is None:
        pytest.skip(f"no wheel of {kind} for this machine")
    with (
        StandIn(slots=8, prefill_s=0.01, token_s=0.01) as engine,
        Gateway(engine.url) as gateway,
        proxy(kind, gateway.port, tmp_path) as port,
        Client(("127.0.0.1", port)) as client,
    ):
        for _ in range(2):
            client.chat(model="first", stream=True, max_tokens=3)
            assert client.read_answer().complete
        client.chat(model="second", stream=True, max_tokens=100_000)
        client.read_until(b"data: ")
        client.fin()
        assert ended(gateway, "second")["outcome"] == "client_gone"
        assert engine.wait_idle()["aborted"] == 1
        models = iter(["third", "fourth", "fifth"])
        while not another_is_served(port, model := next(models)):
            assert kind == "traefik", "the next client's call was disturbed"
            assert (row := ended(gateway, model))["cause"] in ("fin", "rst"), f"not by the proxy: {row}"


def another_is_served(port: int, model: str) -> bool:
    """Return whether a new client gets its whole answer. Under load, Traefik sometimes closes a connection to the gateway that
    it uses again already, for a call that was given up on it before (its log: use of closed network connection)."""
    with Client(("127.0.0.1", port)) as client:
        client.chat(model=model, stream=True, max_tokens=3)
        answer = client.read_answer()
        return answer.complete and answer.status == 200


SPEAK_HTTP2: dict[str, Callable[[str], str]] = {  # without TLS, which changes nothing about hang-ups
    "nginx": instead("listen 8000;", "listen 8000 http2;"),
    "haproxy": instead("bind :8000", "bind :8000 proto h2"),
    "caddy": str,
    "envoy": str,
    "traefik": str,
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """Play `cancels_and_leaves` with all proxies at the same time."""
    present = [kind for kind in KINDS if program(kind) is not None]
    with ThreadPoolExecutor(len(KINDS)) as threads:
        yield {kind: threads.submit(cancels_and_leaves, kind, tmp_path_factory.mktemp(kind)) for kind in present}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_cancelled_on_an_http2_connection(kind: str, played: dict[str, Future[None]]) -> None:
    """Its stream is reset, the others on the same connection go on; then the connection ends, with the last call on it."""
    if kind in INSTALLED and program(kind) is None:
        pytest.skip(f"no wheel of {kind} for this machine")
    played[kind].result()


def cancels_and_leaves(kind: str, folder: Path) -> None:
    settings: dict[str, Any] = {"slots": 8, "prefill_s": 2.0, "token_s": TOKEN_S, "answer_tokens": TOKENS}
    with (
        StandIn(**settings) as engine,
        Gateway(engine.url, slots=8) as gateway,
        proxy(kind, gateway.port, folder, SPEAK_HTTP2[kind]) as port,
    ):
        with Http2Client(port) as client:
            calls = {
                model: client.chat(model=model, stream=model != "whole", max_tokens=TOKENS) for model in ("whole", "early")
            }
            wait_until(lambda: all(at_engine(engine, model) for model in calls), what="the calls in the engine")
            for model in ("whole", "early"):
                client.cancel(calls[model])
            calls |= {model: client.chat(model=model, stream=True, max_tokens=TOKENS) for model in ("during", "last")}
            client.read_until(calls["during"], b"data: ")
            client.cancel(calls["during"])
            for model in ("whole", "early", "during"):
                row = ended(gateway, model)
                assert row["outcome"] == "client_gone" and row["tokens_out"] <= (model == "during"), (model, row)
            client.read_until(calls["last"], b"data: ")
        assert ended(gateway, "last")["outcome"] == "client_gone"


def at_engine(engine: StandIn, model: str) -> bool:
    return any(f'"{model}"' in row["body"] for row in engine.seen())


def ended(gateway: Gateway, model: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        rows = (row for row in gateway.log() if row.get("event") == "call_ended")
        return next((row for row in rows if row["model"] == model), None)

    found = wait_until(look, what=f"the log line of {model}")
    assert found is not None
    return found


def verdict(row: dict[str, Any], case: Case) -> str:
    if row["outcome"] == "completed":
        return SWALLOWED
    assert row["outcome"] == "client_gone", row
    return AT_ONCE if row["tokens_out"] <= case.after_a_token else LATE

"""Drop-in: clients of vLLM or SGLang work through the gateway unchanged."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from hangup.gateway.apis.engine_paths import PASSED, REFUSED
from support.linux import proc
from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Answer, Client, ask
from support.raw_engine import Script, raw_engine
from support.waiting import wait_until

SERVED = ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/v1/classify", "/classify", "/pooling", "/v2/embed"]
SERVED += ["/v1/moderations", "/v1/images/generations", "/v1/audio/speech", "/encode"]


def get(gateway: Gateway, path: str, method: str = "GET", headers: str = "") -> Answer:
    with Client(gateway.address) as client:
        client.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: 0\r\n\r\n".encode())
        return client.read_answer()


def in_flight(gateway: Gateway) -> float:
    return sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_backend_in_flight"))


def live(gateway: Gateway) -> float:
    return sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_calls_live"))


def calls_logged(gateway: Gateway) -> int:
    return sum(row.get("event") == "call_ended" for row in gateway.log())


class TestHealth:
    @pytest.mark.parametrize(
        ("method", "path"),
        [("GET", "/health"), ("HEAD", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health_generate")],
    )
    def test_well(self, gateway: Gateway, engine: StandIn, method: str, path: str) -> None:
        before = len(engine.seen())
        answer = get(gateway, path, method)
        assert (answer.status, answer.body) == (200, b"")
        assert len(engine.seen()) == before

    def test_a_probe_is_no_call(self, gateway: Gateway) -> None:
        gateway.call_log(get(gateway, "/v1/models").headers["x-request-id"])  # one that is; lines are written in order
        before = calls_logged(gateway)
        metrics = {name: value for name, value in gateway.metrics().items() if name.startswith("hangup_calls_total")}
        with Client(gateway.address) as client:
            for _ in range(20):  # on one connection, kept alive
                client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                assert client.read_answer().status == 200
        answer = get(gateway, "/v1/models")
        gateway.call_log(answer.headers["x-request-id"])
        assert calls_logged(gateway) == before + 1
        after = {name: value for name, value in gateway.metrics().items() if name.startswith("hangup_calls_total")}
        assert sum(after.values()) == sum(metrics.values()) + 1

    def test_no_key_is_asked_for(self, engine: StandIn) -> None:
        """As with vLLM and SGLang: load balancers have no keys."""
        digest = hashlib.sha256(b"secret").hexdigest()
        config = f'[[backend]]\nurl = "{engine.url}"\n[[tenant]]\nname = "a"\nkey_sha256 = ["{digest}"]\n'
        with Gateway(config=config) as keyed:
            assert get(keyed, "/health").status == 200
            assert get(keyed, "/version").status == 401
            assert get(keyed, "/version", headers="Authorization: Bearer secret\r\n").status == 200

    def test_503_while_no_backend_is_up(self) -> None:
        with StandIn() as engine, Gateway(engine.url, health_interval_s=0.1, failures_max=1) as gateway:
            wait_until(lambda: get(gateway, "/health").status == 200)
            engine.close()
            answer = wait_until(lambda: found if (found := get(gateway, "/health")).status == 503 else None)
            assert answer is not None
            assert (answer.body, answer.headers["x-hangup-reason"]) == (b"", "no_backend")
            assert gateway.ready() == 503

    def test_503_while_draining(self) -> None:
        with gateway_and_engine({"drain_s": 600}, token_s=0.02) as (gateway, _), Client(gateway.address) as busy:
            busy.chat(stream=True, ignore_eos=True)
            busy.read_until(b'"content":" ')
            gateway.signal(signal.SIGTERM)
            wait_until(lambda: any(row.get("event") == "drain_started" for row in gateway.log()))
            answer = get(gateway, "/health")
            assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "draining")
            assert answer.headers["connection"] == "close"


class TestQuestions:
    def test_version_and_tokens(self, gateway: Gateway, engine: StandIn) -> None:
        assert get(gateway, "/version").json() == {"version": "0.0-standin"}
        answer = ask(gateway.address, "/tokenize", b'{"model":"m","prompt":"one two three"}')
        assert answer.json()["count"] == 3
        assert ask(gateway.address, "/detokenize", b'{"tokens":[1,2]}').json() == {"prompt": "word word"}
        row = gateway.call_log(answer.headers["x-request-id"])
        assert (row["route"], row["outcome"], row["attempts"]) == ("tokenize", "completed", 1)

    def test_answered_while_every_place_is_taken(self) -> None:
        settings = {"slots": 1, "queue_s": 30}
        with gateway_and_engine(settings, slots=1, token_s=0.02) as (gateway, engine), Client(gateway.address) as busy:
            busy.chat(stream=True, ignore_eos=True)
            busy.read_until(b'"content":" ')
            for path, body in (("/tokenize", b'{"prompt":"a b"}'), ("/v1/messages/count_tokens", b'{"messages":[]}')):
                assert ask(gateway.address, path, body).status == 200
            assert get(gateway, "/version").status == 200
            assert get(gateway, "/v1/models").status == 200
            assert engine.stats()["running"] == 1
            assert in_flight(gateway) == 1

    def test_a_backend_that_does_not_know_is_not_the_last(self) -> None:
        """SGLang has /model_info and vLLM has not; the answer must not depend on which is asked first."""

        def knows_nothing(sock: socket.socket, request: bytes) -> None:
            sock.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")

        def knows(sock: socket.socket, request: bytes) -> None:
            sock.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"model":"m"}')

        with raw_engine(knows_nothing) as one, raw_engine(knows) as two, Gateway(one.url, two.url) as gateway:
            for _ in range(6):
                assert get(gateway, "/model_info").json() == {"model": "m"}
            two.close()
            answer = wait_until(lambda: found if (found := get(gateway, "/model_info")).status == 404 else None)
            assert answer is not None and answer.body == b"{}"

    def test_a_text_is_counted_where_its_model_is(self) -> None:
        def engine(model: str) -> Script:
            def answer(sock: socket.socket, request: bytes) -> None:
                body = json.dumps({"count": 1, "model": model}).encode()
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

            return answer

        with raw_engine(engine("a")) as one, raw_engine(engine("b")) as two:
            rows = [f'[[backend]]\nurl = "{e.url}"\nmodels = ["{m}"]\n' for e, m in ((one, "a"), (two, "b"))]
            alias = '[[alias]]\nname = "short"\nmodel = "b"\n'
            with Gateway(config="".join([*rows, alias])) as gateway:
                for model, there in (("a", "a"), ("b", "b"), ("short", "b")):
                    for _ in range(4):
                        answer = ask(gateway.address, "/tokenize", json.dumps({"model": model, "prompt": "x"}).encode())
                        assert answer.json()["model"] == there
                assert b'"short"' not in two.requests[-1] and b'"b"' in two.requests[-1]

    def test_a_backend_that_is_gone_is_not_the_last(self) -> None:
        with StandIn() as one, StandIn() as two, Gateway(one.url, two.url, health_interval_s=60) as gateway:
            one.close()
            assert [get(gateway, "/version").status for _ in range(6)] == [200] * 6

    def test_leaving_leaves_nothing_behind(self) -> None:
        """When a client abandons a question, hangup sends no abort and holds nothing."""
        requests: list[bytes] = []

        def silent(sock: socket.socket, request: bytes) -> None:
            requests.append(request)

        with raw_engine(silent) as engine, Gateway(engine.url, slots=1) as gateway:
            with Client(gateway.address) as client:
                client.send(b"GET /version HTTP/1.1\r\nHost: a\r\nX-Request-Id: q1\r\n\r\n")
                wait_until(lambda: requests)
            assert gateway.call_log("q1")["outcome"] == "client_gone"
            assert in_flight(gateway) == 0
            assert not any(value for name, value in gateway.metrics().items() if "zombie" in name or "abort" in name)

    def test_they_leave_nothing_for_the_collector(self) -> None:
        """Reference cycles are broken when the call ends: 5000 questions once held 10 MB until a garbage collection."""
        with gateway_and_engine() as (gateway, _), Client(gateway.address) as client:

            def ask_often(count: int) -> int:
                for _ in range(count):
                    client.send(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n")
                    assert client.read_answer().status == 200
                status = proc(gateway.popen.pid, "status").read_text()
                return int(status.partition("VmRSS:")[2].split()[0])

            before = ask_often(2000)  # so many ended calls are remembered, and more
            assert ask_often(5000) - before < 4000


class TestInference:
    @pytest.mark.parametrize("path", SERVED)
    def test_served(self, gateway: Gateway, engine: StandIn, path: str) -> None:
        body = b'{ "model":"m", "input":"x" }'
        answer = ask(gateway.address, path, body)
        assert answer.status == 200 and answer.json()["text"]
        assert (engine.seen()[-1]["path"], engine.seen()[-1]["body"]) == (path, body.decode())
        row = gateway.call_log(answer.headers["x-request-id"])
        assert (row["outcome"], row["route"]) == ("completed", PASSED[path][1].name)

    @pytest.mark.parametrize("path", ["/v1/rerank", "/pooling", "/v1/audio/speech"])
    def test_a_hang_up_ends_it(self, path: str) -> None:
        with gateway_and_engine({}, token_s=0.02, answer_tokens=100_000) as (gateway, engine):
            with Client(gateway.address) as client:
                client.post(path, {"input": "x"}, {"X-Request-Id": "left"})
                wait_until(lambda: engine.stats()["running"] == 1)
            engine.wait_idle()
            assert gateway.call_log("left")["outcome"] == "client_gone"

    def test_they_take_places(self) -> None:
        settings = {"slots": 2, "queue_s": 30}
        with gateway_and_engine(settings, slots=8, token_s=0.005, answer_tokens=40) as (gateway, engine):
            with ThreadPoolExecutor(8) as pool:
                answers = [pool.submit(ask, gateway.address, "/v1/rerank", b'{"query":"x"}') for _ in range(8)]
                assert [future.result().status for future in answers] == [200] * 8
            assert engine.stats()["running_peak"] <= 2

    def test_invocations(self, gateway: Gateway, engine: StandIn) -> None:
        """SageMaker's path: hangup caps a chat in it like any other, and passes the rest on."""
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
        answer = ask(gateway.address, "/invocations", json.dumps(chat).encode())
        row = gateway.call_log(answer.headers["x-request-id"])
        assert row["route"] == "openai.chat"
        answer = ask(gateway.address, "/invocations", b'{"input":"x"}')
        assert answer.json()["text"]
        assert gateway.call_log(answer.headers["x-request-id"])["route"] == "invocations"

    def test_a_refusal_has_the_shape_of_the_api_that_the_body_shows(self, gateway: Gateway) -> None:
        """Two engines have /generate, and their errors differ."""
        sglang = ask(gateway.address, "/generate", b'{"text":"x","stream":"maybe"}')
        tgi = ask(gateway.address, "/generate", b'{"inputs":"x","parameters":7}')
        assert (sglang.status, tgi.status) == (400, 400)
        assert sglang.json()["error"]["code"] == sglang.headers["x-hangup-reason"]
        assert tgi.json()["error_type"] == "validation"
        routes = [gateway.call_log(answer.headers["x-request-id"])["route"] for answer in (sglang, tgi)]
        assert routes == ["sglang.generate", "tgi.generate"]


class TestRefused:
    @pytest.mark.parametrize("path", [*REFUSED, "/no/such/path"])
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_says_why_and_how_to_allow_it(self, gateway: Gateway, engine: StandIn, path: str, method: str) -> None:
        before = len(engine.seen())
        answer = get(gateway, path, method)
        message = answer.json()["error"]["message"]
        assert (answer.status, answer.headers["x-hangup-reason"]) == (404, "not_found")
        assert f'[[route]] with path = "{path}"' in message
        assert REFUSED.get(path, "Unknown path") in message
        assert len(engine.seen()) == before

    def test_no_path_is_both(self) -> None:
        assert not set(REFUSED) & set(PASSED)

    def test_allowed_as_the_message_says(self, engine: StandIn) -> None:
        with Gateway(config=f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/metrics"\n') as gateway:
            assert b"standin_tokens_total" in get(gateway, "/metrics").body

    def test_a_get_that_was_allowed_takes_no_place(self) -> None:
        with StandIn(slots=1, token_s=0.02) as engine:
            config = f'slots = 1\n[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/metrics"\n'
            with Gateway(config=config) as gateway, Client(gateway.address) as busy:
                busy.chat(stream=True, ignore_eos=True)
                busy.read_until(b'"content":" ')
                assert get(gateway, "/metrics").status == 200
                assert in_flight(gateway) == 1


def form(file: bytes, **fields: str) -> tuple[bytes, str]:
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode() for name, text in fields.items()
    ]
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    return b"".join([*parts, head, file, b"\r\n--b--\r\n"]), "multipart/form-data; boundary=b"


def upload_head(body: bytes, kind: str) -> bytes:
    lines = ["POST /v1/audio/transcriptions HTTP/1.1", "Host: a", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode()


class TestFiles:
    def test_25_megabytes_of_audio(self, gateway: Gateway) -> None:
        body, kind = form(bytes(range(256)) * (100 * 1024), model="whisper")
        answer = httpx.post(f"{gateway.url}/v1/audio/transcriptions", content=body, headers={"content-type": kind}, timeout=60)
        assert answer.status_code == 200, answer.text
        received = answer.json()
        assert (received["bytes"], received["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        assert received["bytes"] > 25 * 1024 * 1024
        assert gateway.call_log(answer.headers["x-request-id"])["bytes_in"] == len(body)

    def test_in_chunks(self, gateway: Gateway) -> None:
        body, kind = form(b"\0\xff" * (10 * 1024 * 1024), model="whisper")

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(body), 100_000):
                yield body[at : at + 100_000]

        answer = httpx.post(
            f"{gateway.url}/v1/audio/translations", content=pieces(), headers={"content-type": kind}, timeout=60
        )
        assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()

    def test_the_sdk(self, gateway: Gateway) -> None:
        sdk = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60)
        assert sdk.audio.transcriptions.create(file=("a.wav", b"RIFF" * 1000), model="whisper").text
        stream = sdk.audio.transcriptions.create(file=("a.wav", b"RIFF" * 1000), model="whisper", stream=True)
        assert len(list(stream)) > 10
        assert sdk.moderations.with_raw_response.create(input="x").status_code == 200
        assert sdk.images.with_raw_response.edit(image=b"\x89PNG", prompt="x").status_code == 200

    def test_a_hang_up_in_a_stream_of_text(self) -> None:
        body, kind = form(b"\0" * 1000, model="whisper", stream="true")
        with gateway_and_engine({}, token_s=0.01, answer_tokens=100_000) as (gateway, engine):
            with Client(gateway.address) as client:
                client.send(upload_head(body, kind) + body)
                assert b"text/event-stream" in client.read_until(b"transcription.chunk")
            engine.wait_idle()

    def test_a_larger_one_is_refused_with_the_limit_and_its_name(self) -> None:
        with gateway_and_engine({"media_bytes_max": 20_000, "body_bytes_max": 1024}) as (gateway, engine):
            body, kind = form(b"\0" * 30_000)
            for path, most, name in (
                ("/v1/audio/transcriptions", 20_000, "media_bytes_max"),
                ("/v1/chat/completions", 1024, "body_bytes_max"),
            ):
                answer = httpx.post(f"{gateway.url}{path}", content=body, headers={"content-type": kind}, timeout=60)
                assert answer.status_code == 413
                assert f"the limit is {most} bytes" in answer.json()["error"]["message"]
                assert f"({name})" in answer.json()["error"]["message"]
            body, _ = form(b"\0" * 10_000)
            assert (
                httpx.post(
                    f"{gateway.url}/v1/audio/transcriptions", content=body, headers={"content-type": kind}, timeout=60
                ).status_code
                == 200
            )
            assert len(engine.seen()) == 1

    def test_what_is_held_is_bounded_and_given_back(self) -> None:
        settings = {"media_held_bytes_max": 100_000}
        body, kind = form(b"\0" * 60_000)
        head = upload_head(body, kind)
        with gateway_and_engine(settings) as (gateway, engine):
            for leave in ("fin", "reset"):
                with Client(gateway.address) as first, Client(gateway.address) as second:
                    first.send(head + body[:100])
                    wait_until(lambda: live(gateway) == 1)
                    assert gateway.metrics()["hangup_media_held_bytes"] == len(body)
                    second.send(head + body)
                    answer = second.read_answer()
                    assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "media_held_bytes_max")
                    assert answer.headers["retry-after"]
                    getattr(first, leave)()
                    wait_until(lambda: live(gateway) == 0)
            for _ in range(3):
                assert (
                    httpx.post(
                        f"{gateway.url}/v1/audio/transcriptions", content=body, headers={"content-type": kind}, timeout=60
                    ).status_code
                    == 200
                )
            assert len(engine.seen()) == 3
            assert gateway.metrics()["hangup_media_held_bytes"] == 0


class TestResponses:
    """`/v1/responses/{id}` for responses that the engine stores, beside those of jobs."""

    def test_an_engines_own(self) -> None:
        with gateway_and_engine({"jobs_calm_s": 0}, answer_tokens=5) as (gateway, _):
            sdk = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60)
            created = sdk.responses.create(model="m", input="hello")
            assert sdk.responses.retrieve(created.id).output_text == created.output_text
            assert sdk.responses.cancel(created.id).id == created.id
            job = sdk.responses.create(model="m", input="hello", background=True)
            done = wait_until(lambda: found if (found := sdk.responses.retrieve(job.id)).status == "completed" else None)
            assert done is not None and done.id == job.id
            with pytest.raises(openai.NotFoundError, match="unknown response resp_nowhere"):  # the engine's word for it
                sdk.responses.retrieve("resp_nowhere")

    def test_without_jobs(self) -> None:
        with gateway_and_engine({"jobs": "none"}, answer_tokens=5) as (gateway, _):
            sdk = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60)
            created = sdk.responses.create(model="m", input="hello")
            assert sdk.responses.retrieve(created.id).id == created.id

    @pytest.mark.parametrize("remembered", [0, 1000])
    @pytest.mark.parametrize("stream", [False, True])
    def test_several_backends(self, remembered: int, stream: bool) -> None:
        with (
            StandIn(answer_tokens=3) as one,
            StandIn(answer_tokens=3) as two,
            Gateway(one.url, two.url, engine_responses_max=remembered) as gateway,
        ):
            ids = []
            for _ in range(6):
                answer = ask(gateway.address, "/v1/responses", json.dumps({"input": "x", "stream": stream}).encode())
                ids.append(re.search(rb'"(resp_[^"]+)"', answer.body)[1].decode())  # type: ignore[index]
            assert len(one.seen()) == len(two.seen()) == 3
            attempts = []
            for id in ids:
                answer = get(gateway, f"/v1/responses/{id}")
                assert answer.json()["id"] == id
                attempts.append(gateway.call_log(answer.headers["x-request-id"])["attempts"])
            assert not remembered or attempts == [1] * 6
            assert get(gateway, "/v1/responses/resp_nowhere").status == 404

    def test_what_continues_a_response_goes_to_its_maker(self) -> None:
        with StandIn(answer_tokens=3) as one, StandIn(answer_tokens=3) as two, Gateway(one.url, two.url) as gateway:
            for _ in range(4):
                first = ask(gateway.address, "/v1/responses", b'{"input":"x"}')
                more = json.dumps({"input": "y", "previous_response_id": first.json()["id"]}).encode()
                second = [ask(gateway.address, "/v1/responses", more) for _ in range(3)]
                rows = [gateway.call_log(answer.headers["x-request-id"]) for answer in (first, *second)]
                assert len({row["backend"] for row in rows}) == 1

    def test_nobody_sees_anothers(self) -> None:
        keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")}
        tenants = "".join(f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{digest}"]\n' for name, digest in keys.items())
        with StandIn(answer_tokens=3) as engine, Gateway(config=f'[[backend]]\nurl = "{engine.url}"\n{tenants}') as gateway:
            with Client(gateway.address) as client:
                client.post("/v1/responses", {"input": "x"}, {"Authorization": "Bearer a"})
                id = client.read_answer().json()["id"]
            before = len(engine.seen())
            assert get(gateway, f"/v1/responses/{id}", headers="Authorization: Bearer b\r\n").status == 404
            with Client(gateway.address) as client:
                client.post("/v1/responses", {"input": "x", "previous_response_id": id}, {"Authorization": "Bearer b"})
                assert client.read_answer().status == 404
            assert len(engine.seen()) == before
            assert get(gateway, f"/v1/responses/{id}", headers="Authorization: Bearer a\r\n").status == 200


PREFLIGHT = (
    "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n"
)


class TestPagesOfOtherSites:
    def test_the_engine_decides(self) -> None:
        with gateway_and_engine(cors=True) as (gateway, engine):
            answer = get(gateway, "/v1/chat/completions", "OPTIONS", PREFLIGHT)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
            assert engine.seen()[-1]["headers"]["origin"] == "https://page.example"
            for stream in (False, True):
                with Client(gateway.address) as client:
                    client.chat({"Origin": "https://page.example"}, stream=stream, max_tokens=2)
                    answer = client.read_answer()
                assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
            engine.behave(cors=False)
            assert "access-control-allow-origin" not in get(gateway, "/v1/chat/completions", "OPTIONS", PREFLIGHT).headers

    def test_no_key_is_asked_for(self) -> None:
        digest = hashlib.sha256(b"secret").hexdigest()
        with StandIn(cors=True) as engine:
            config = f'[[backend]]\nurl = "{engine.url}"\n[[tenant]]\nname = "a"\nkey_sha256 = ["{digest}"]\n'
            with Gateway(config=config) as gateway:
                assert get(gateway, "/v1/chat/completions", "OPTIONS", PREFLIGHT).status == 200
                refused = get(gateway, "/v1/models", headers="Origin: https://page.example\r\n")
                assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "*")

    def test_a_refusal_can_be_read_by_a_page_that_the_engine_allows(self) -> None:
        with gateway_and_engine({"slots": 1, "queue_depth_max": 0}, cors=True, token_s=0.02) as (gateway, _):
            assert get(gateway, "/v1/chat/completions", "OPTIONS", PREFLIGHT).status == 200
            with Client(gateway.address) as busy, Client(gateway.address) as page, Client(gateway.address) as other:
                busy.chat(stream=True, ignore_eos=True)
                busy.read_until(b'"content":" ')
                page.chat({"Origin": "https://page.example"})
                answer = page.read_answer()
                assert (answer.status, answer.headers["access-control-allow-origin"]) == (503, "*")
                assert "retry-after" in answer.headers["access-control-expose-headers"]
                other.chat({"Origin": "https://other.example"})
                assert "access-control-allow-origin" not in other.read_answer().headers

    @pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/jobs/x", "/v1/responses/x", "/metrics", "/health"])
    def test_not_for_what_is_ours_or_not_there(self, path: str) -> None:
        with gateway_and_engine(cors=True) as (gateway, engine):
            answer = get(gateway, path, "OPTIONS", PREFLIGHT)
            assert answer.status in (404, 405)
            assert "access-control-allow-origin" not in answer.headers
            assert not engine.seen()

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"origin": "https://page.example"}, 415),
            ({"origin": "https://page.example", "authorization": "Bearer any"}, 200),  # it had to ask first
            ({"origin": "https://ours.localhost", "host": "ours.localhost"}, 200),
            ({"origin": "null"}, 415),
        ],
    )
    def test_files_from_a_page(self, gateway: Gateway, headers: dict[str, str], status: int) -> None:
        body, kind = form(b"RIFF")
        url = f"{gateway.url}/v1/audio/transcriptions"
        assert httpx.post(url, content=body, headers={"content-type": kind, **headers}, timeout=60).status_code == status

    def test_turned_off(self) -> None:
        with gateway_and_engine({"cors": "none"}, cors=True) as (gateway, engine):
            assert get(gateway, "/v1/chat/completions", "OPTIONS", PREFLIGHT).status == 405
            assert not engine.seen()

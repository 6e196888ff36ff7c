"""HU004 on handlers of every kind: which frameworks cancel by themselves, what counts as inference, and who watches already."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import RULES, lint_source

ALL = list(RULES)


def codes(source: str) -> list[str]:
    return [finding.code for finding in lint_source(dedent(source), codes=ALL)]


HANDLER = """
    from {package} import {name}
    from openai import AsyncOpenAI

    app = {name}("app")
    client = AsyncOpenAI()

    @app.post("/chat")
    async def chat(request):
        return await client.chat.completions.create(model="m", messages=[], max_tokens=500)
"""


@pytest.mark.parametrize(("package", "name"), [("quart", "Quart"), ("sanic", "Sanic")])
def test_frameworks_that_cancel_by_themselves_need_no_help(package: str, name: str) -> None:
    assert codes(HANDLER.format(package=package, name=name)) == []
    assert codes(HANDLER.format(package="fastapi", name="FastAPI")) == ["HU004"]


def test_django_cancels_async_views_but_not_sync_ones() -> None:
    source = """
        from django.urls import path
        from openai import AsyncOpenAI

        client = AsyncOpenAI()

        async def chat(request):
            return await client.chat.completions.create(model="m", messages=[], max_tokens=500)

        urlpatterns = [path("chat", chat)]
    """
    assert codes(source) == []
    sync = source.replace("async def", "def").replace("await ", "").replace("AsyncOpenAI", "OpenAI")
    assert codes(sync) == ["HU004"]


def test_handlers_that_run_in_threads() -> None:
    flask = """
        from flask import Flask
        from openai import OpenAI

        app = Flask(__name__)
        client = OpenAI()

        @app.route("/chat", methods=["POST"])
        def chat():
            answer = client.chat.completions.create(model="m", messages=[], max_tokens=500)
            return answer.choices[0].message.content
    """
    assert codes(flask) == ["HU004"]
    streaming = flask.replace(
        'answer = client.chat.completions.create(model="m", messages=[], max_tokens=500)',
        'answer = client.chat.completions.create(model="m", messages=[], max_tokens=500, stream=True)',
    ).replace("return answer.choices[0].message.content", "return Response(c for c in answer)")
    assert codes(streaming) == []


def test_handlers_registered_by_call() -> None:
    source = """
        from fastapi import APIRouter

        class Api:
            def __init__(self, llm):
                self.llm = llm
                self.router = APIRouter()
                self.router.add_api_route("/chat", self.chat, methods=["POST"])

            async def chat(self, prompt: str):
                return await self.llm.ainvoke(prompt)
    """
    assert codes(source) == ["HU004"]
    assert codes(source.replace('self.router.add_api_route("/chat", self.chat, methods=["POST"])', "pass")) == []


def test_litestar_and_aiohttp_handlers_are_handlers() -> None:
    source = """
        from litestar import post

        @post("/chat")
        async def chat(data: dict, llm: object) -> str:
            return await llm.ainvoke(data)
    """
    assert codes(source) == ["HU004"]
    source = """
        from aiohttp import web

        async def chat(request: web.Request) -> web.Response:
            return web.json_response(await request.app["llm"].acomplete("hi"))
    """
    assert codes(source) == ["HU004"]
    assert codes(source + "\nweb.run_app(app, handler_cancellation=True)\n".replace("\n", "\n        ")) == []


def test_grpc_servicers() -> None:
    source = """
        import grpc
        import backend_pb2_grpc
        from transformers import AutoModelForCausalLM

        class Backend(backend_pb2_grpc.BackendServicer):
            def LoadModel(self, request, context):
                self.model = AutoModelForCausalLM.from_pretrained(request.name)

            def Predict(self, request, context):
                return self.model.generate(request.ids, max_new_tokens=100)
    """
    assert codes(source) == ["HU004"]
    assert (
        codes(
            source.replace(
                "return self.model",
                "context.add_callback(self.stop) if context.is_active() else 0\n                return self.model",
            )
        )
        == []
    )
    assert codes(source.replace("def Predict", "async def Predict")) == ["HU005"], (
        "gRPC's asyncio server cancels, but it is blocked"
    )


def test_double_star_and_unknown_receivers() -> None:
    source = """
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/chat")
        async def chat(body: dict):
            return await app.state.upstream.chat.completions.create(**body)
    """
    assert codes(source) == ["HU004"]


def test_a_handler_that_only_streams_is_not_asked_to_watch() -> None:
    source = """
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse

        app = FastAPI()

        async def tokens(stream):
            async for chunk in stream:
                yield chunk

        @app.post("/chat")
        async def chat(body: dict, client: object):
            stream = await client.chat.completions.create(**body)
            return StreamingResponse(tokens(stream))
    """
    assert codes(source) == []


def test_work_in_a_thread_is_not_stopped_by_the_framework() -> None:
    source = """
        import asyncio
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60)

        def ask(messages):
            answer = client.chat.completions.create(model="m", messages=messages, max_tokens=500)
            return answer.choices[0].message.content

        @app.post("/a")
        async def a(messages: list[dict]):
            return await asyncio.to_thread(ask, messages)

        @app.post("/b")
        async def b(messages: list[dict]):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, lambda: ask(messages))
    """
    assert codes(source) == ["HU004", "HU004"]


def test_names_that_only_sound_like_inference() -> None:
    source = """
        from fastapi import FastAPI
        import httpx

        app = FastAPI()
        client = httpx.AsyncClient()

        @app.post("/key/generate")
        async def new_key(name: str, redis: object):
            pipeline = redis.pipeline()
            pipeline.ttl(name)
            await pipeline.execute()
            await client.post("http://keys/key/generate", json={"name": name})
            return await redis.generate(name)
    """
    assert codes(source) == []


def test_a_handler_for_inference_that_forwards_or_submits() -> None:
    source = """
        from fastapi import FastAPI
        import httpx

        app = FastAPI()
        client = httpx.AsyncClient()

        @app.post("{path}")
        async def forward(body: dict):
            answer = await client.post(app.state.url, json=body)
            return answer.json()

        @app.post("/other{path}")
        async def submit(body: dict):
            return await app.state.scheduler.submit(body)
    """
    assert codes(source.replace("{path}", "/v1/chat/completions")) == ["HU004", "HU004"]
    assert codes(source.replace("{path}", "/v1/orders")) == []


def test_a_callee_that_is_given_the_request_may_watch_it() -> None:
    source = """
        from fastapi import FastAPI, Request

        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def chat(body: dict, raw: Request):
            return await app.state.serving.create_chat_completion(body, raw)
    """
    assert codes(source) == []
    assert codes(source.replace("(body, raw)", "(body)").replace("create_chat_completion", "complete")) == ["HU004"]


def test_counting_inference_is_no_inference() -> None:
    source = """
        from fastapi import FastAPI

        app = FastAPI()

        class Metrics:
            def track_inference(self, name):
                return name

        metrics = Metrics()

        @app.post("/v1/chat/completions")
        async def chat(body: dict):
            tracker = metrics.track_inference("chat")
            return tracker
    """
    assert codes(source) == []


def test_a_row_of_a_table_is_no_completion() -> None:
    source = """
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/groups")
        async def groups(name: str, dao: object):
            return await dao.GroupDao.acreate(name)
    """
    assert codes(source) == []


def test_a_callback_from_a_thread_is_no_inference() -> None:
    source = """
        import requests
        from fastapi import FastAPI
        from starlette.concurrency import run_in_threadpool

        app = FastAPI()

        def tell(address, state):
            requests.post(address, json=state)

        @app.post("/files")
        async def files(address: str):
            await run_in_threadpool(tell, address, {})
    """
    assert codes(source) == []


def test_a_helper_that_cancels_the_tasks_it_is_given() -> None:
    source = RULES["HU003"].bad.replace("    await task\n", "    await cancel_all([task])\n")
    assert codes(source) == []


def test_a_websocket_that_nobody_reads_meanwhile() -> None:
    source = """
        from fastapi import FastAPI, WebSocket

        app = FastAPI()

        @app.websocket("/chat")
        async def chat(websocket: WebSocket):
            while True:
                prompt = await websocket.receive_text()
                await websocket.send_text(await app.state.llm.ainvoke(prompt))
    """
    assert codes(source) == ["HU004"]


@pytest.mark.parametrize(
    "path",
    ["/health", "/test", "/tts", "/audio/transcriptions", "/images/generations", "/webhook/slack", "/ingest"],
)
def test_handlers_whose_answer_nobody_waits_for_or_is_no_text(path: str) -> None:
    source = HANDLER.format(package="fastapi", name="FastAPI")
    assert codes(source.replace("/chat", path)) == []


@pytest.mark.parametrize("name", ["validate_provider_key", "test_connection", "check_model", "SpeechToText", "generate_image"])
def test_functions_that_only_try_a_model_out_or_make_no_text(name: str) -> None:
    source = f"""
        from fastapi import FastAPI

        app = FastAPI()

        async def {name}(llm, question):
            return await llm.ainvoke(question)

        @app.post("/ask")
        async def ask(llm, question: str):
            return await {name}(llm, question)
    """
    assert codes(source) == []
    assert codes(source.replace(name, "answer_with_voice_of_model")) == ["HU004"]


def test_code_outside_of_the_project_may_watch_the_request_that_it_is_given() -> None:
    source = """
        from fastapi import FastAPI, Request

        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(body: dict, raw_request: Request):
            return await serving_chat.create_chat_completion(body, raw_request)
    """
    assert codes(source) == []
    assert codes(source.replace("(body, raw_request)", "(body)")) == ["HU004"]


CONSUMER = """
    from channels.generic.websocket import {base}
    from openai import {client}

    class Chat({base}):
        {head} {name}(self, text_data=None, bytes_data=None):
            answer = {wait}{client}().chat.completions.create(model="m", messages=[text_data], max_tokens=500)
            {wait}self.send(text_data=answer.choices[0].message.content)
"""


@pytest.mark.parametrize(("name", "found"), [("receive", ["HU004"]), ("group_left", [])])
def test_consumers_of_channels_answer_one_message_after_the_other(name: str, found: list[str]) -> None:
    waits = {"base": "AsyncWebsocketConsumer", "client": "AsyncOpenAI", "head": "async def", "wait": "await "}
    assert codes(CONSUMER.format(name=name, **waits)) == found
    blocks = {"base": "WebsocketConsumer", "client": "OpenAI", "head": "def", "wait": ""}
    assert codes(CONSUMER.format(name=name, **blocks)) == found


@pytest.mark.parametrize(
    ("route", "found"),
    [
        ("/health-advice", ["HU004"]),
        ("/health", []),
        ("/health/llm", []),
        ("/ocr-summary", ["HU004"]),
        ("/speech", []),
        ("/generate-video", []),
        ("/generate-video-summary", ["HU004"]),
        ("/transcribe", []),
        ("/ask-with-tts", ["HU004"]),
        ("/analyze-transcript", ["HU004"]),
    ],
)
def test_routes_that_check_health_or_make_media_and_those_that_write_about_them(route: str, found: list[str]) -> None:
    source = HANDLER.format(package="fastapi", name="FastAPI").replace("/chat", route).replace("def chat", "def handle")
    assert codes(source) == found


def test_what_a_method_of_the_class_above_runs() -> None:
    source = """
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()

        class Writing:
            async def run(self, text):
                return await AsyncOpenAI().responses.create(model="m", input=text, max_output_tokens=500)

        class Summaries(Writing):
            async def run(self, text):
                return await super().run(text)

        @app.post("/ask")
        async def ask(text: str):
            return await Summaries().run(text)
    """
    assert codes(source) == ["HU004"]
    assert codes(source.replace("super().run(text)", "self.other(text)")) == []


def test_a_coroutine_that_blocks_in_an_async_view_of_flask() -> None:
    """The view has a loop of its own, so nobody else waits; its client is not watched all the same."""
    source = """
        from flask import Flask
        from openai import OpenAI

        app = Flask(__name__)

        async def answer(text):
            return OpenAI().responses.create(model="m", input=text, max_output_tokens=500)

        @app.post("/ask")
        async def ask(text):
            return await answer(text)
    """
    assert codes(source) == ["HU004"]

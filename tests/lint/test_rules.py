"""Every rule finds its own bad example and nothing else, and accepts the good one; and what public code taught."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import RULES, lint_source

ALL = list(RULES)


def codes(source: str) -> list[str]:
    return [finding.code for finding in lint_source(dedent(source), codes=ALL)]


@pytest.mark.parametrize("code", RULES)
def test_bad_example_is_found_by_this_rule_alone(code: str) -> None:
    assert set(codes(RULES[code].bad)) == {code}


@pytest.mark.parametrize("code", RULES)
def test_good_example_is_clean(code: str) -> None:
    assert codes(RULES[code].good) == []


def test_rules_have_distinct_names() -> None:
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


HANDLER = """
    from {package} import {name}
    from openai import AsyncOpenAI

    app = {name}("app")
    client = AsyncOpenAI()

    @app.post("/chat")
    async def chat(request):
        return await client.chat.completions.create(model="m", messages=[], max_tokens=5)
"""


# HU004


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
            return await client.chat.completions.create(model="m", messages=[], max_tokens=5)

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
            answer = client.chat.completions.create(model="m", messages=[], max_tokens=5)
            return answer.choices[0].message.content
    """
    assert codes(flask) == ["HU004"]
    streaming = flask.replace(
        'answer = client.chat.completions.create(model="m", messages=[], max_tokens=5)',
        'answer = client.chat.completions.create(model="m", messages=[], max_tokens=5, stream=True)',
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
            answer = client.chat.completions.create(model="m", messages=messages, max_tokens=5)
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

        @app.post("{path}")
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


# HU001, HU002, HU003


def test_jobs_that_store_something_are_meant_to_outlive() -> None:
    source = """
        from fastapi import BackgroundTasks, FastAPI

        app = FastAPI()

        async def index_document(llm, text):
            await llm.ainvoke(text)

        @app.post("/documents")
        async def documents(text: str, tasks: BackgroundTasks, llm: object):
            tasks.add_task(index_document, llm, text)
    """
    assert codes(source) == []
    assert codes(source.replace("index_document", "write_essay")) == ["HU001"]


def test_a_task_group_owns_its_tasks() -> None:
    source = """
        import asyncio
        from fastapi import FastAPI

        app = FastAPI()

        @app.websocket("/answer")
        async def answer(engine, prompt):
            async with asyncio.TaskGroup() as tg:
                tg.create_task(engine.generate(prompt))
    """
    assert codes(source) == []


def test_a_worker_of_the_process_belongs_to_no_client() -> None:
    source = """
        import asyncio
        from fastapi import FastAPI

        app = FastAPI()

        async def loop(llm, jobs):
            while True:
                await llm.ainvoke(await jobs.get())

        @app.on_event("startup")
        async def startup():
            asyncio.create_task(loop(app.state.llm, app.state.jobs))

        @app.post("/kick")
        async def kick():
            asyncio.create_task(loop(app.state.llm, app.state.jobs))
    """
    assert codes(source) == []


def test_a_task_that_somebody_else_was_given_is_theirs_to_cancel() -> None:
    source = """
        import asyncio
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/start")
        async def start(prompt: str, llm: object, holder: list):
            task = asyncio.create_task(llm.ainvoke(prompt))
            holder.append(task)
    """
    assert codes(source) == []
    assert codes(source.replace("holder.append(task)", "print(task)")) == ["HU002"]


def test_a_thread_that_feeds_a_streamer() -> None:
    source = """
        from threading import Thread
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from transformers import AutoModelForCausalLM, TextIteratorStreamer

        app = FastAPI()
        model = AutoModelForCausalLM.from_pretrained("m")

        def tokens(ids):
            streamer = TextIteratorStreamer(None)
            kwargs = dict(input_ids=ids, streamer=streamer, max_new_tokens=500)
            thread = Thread(target=model.generate, kwargs=kwargs)
            thread.start()
            for text in streamer:
                yield text

        @app.post("/chat")
        def chat(ids: list[int]):
            return StreamingResponse(tokens(ids))
    """
    assert codes(source) == ["HU003"]
    assert codes(source.replace("max_new_tokens=500", "stopping_criteria=[stop]")) == []


def test_a_generator_that_reads_from_the_engine_itself_needs_nothing() -> None:
    assert codes(RULES["HU007"].good) == []


# HU005


def test_a_blocking_call_through_functions_of_the_module() -> None:
    source = """
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60)

        class Rag:
            def answer(self, question):
                reply = client.chat.completions.create(model="m", messages=[question], max_tokens=5)
                return reply.choices[0].message.content

        rag = Rag()

        @app.post("/ask")
        async def ask(question: str):
            return rag.answer(question)
    """
    assert codes(source) == ["HU005"]


def test_requests_in_an_async_function_are_left_to_others() -> None:
    """ruff and flake8-async: ASYNC210."""
    source = """
        import requests
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/ask")
        async def ask(question: str):
            return requests.post("http://engine/v1/chat/completions", json={"model": "m", "messages": []}).json()
    """
    assert codes(source) == []


# HU009, HU010, HU012, HU013


def test_shields_under_other_names_and_scopes() -> None:
    source = """
        from asyncio import shield as keep

        async def answer(engine, prompt):
            return await keep(engine.generate(prompt))
    """
    assert codes(source) == ["HU009"]
    source = """
        import anyio

        async def answer(engine, prompt):
            with anyio.CancelScope(shield=True):
                return await engine.generate(prompt)
    """
    assert codes(source) == ["HU009"]
    assert codes(source.replace("engine.generate", "engine.release")) == []


def test_a_middleware_hides_nothing_where_nobody_polls() -> None:
    source = """
        from starlette.middleware.base import BaseHTTPMiddleware

        class Timing(BaseHTTPMiddleware):
            async def dispatch(self, request, call_next):
                return await call_next(request)
    """
    assert codes(source) == []


def test_an_endless_retry_loop() -> None:
    source = """
        import asyncio

        async def answer(llm, prompt):
            while True:
                try:
                    return await llm.ainvoke(prompt)
                except Exception:
                    await asyncio.sleep(1)
    """
    assert codes(source) == ["HU012"]
    assert codes(source.replace("while True", "for _ in range(3)")) == []
    assert codes(source.replace("await asyncio.sleep(1)", "give_up_if_late()")) == [], "it may raise"


def test_an_endless_retry_by_decorator() -> None:
    source = """
        from tenacity import retry, stop_after_attempt

        @retry()
        async def answer(llm, prompt):
            return await llm.ainvoke(prompt)
    """
    assert codes(source) == ["HU012"]
    assert codes(source.replace("@retry()", "@retry(stop=stop_after_attempt(3))")) == []


def test_a_queue_whose_taker_runs_no_inference() -> None:
    source = """
        import asyncio

        request_queue = asyncio.Queue()

        async def worker(disk):
            while True:
                await disk.write(await request_queue.get())
    """
    assert codes(source) == []


def test_a_mocked_answer_is_no_inference() -> None:
    source = """
        import litellm
        from fastapi import FastAPI

        app = FastAPI()

        @app.get("/health")
        async def health():
            await litellm.acompletion(model="m", messages=[], mock_response="ok")
    """
    assert codes(source) == []

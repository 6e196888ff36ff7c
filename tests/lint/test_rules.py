"""Every rule finds its own bad example and nothing else, and accepts the good one; and cases found in public code."""

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


@pytest.mark.parametrize(("last", "found"), [("await websocket.close()", ["HU002"]), ("running.cancel()", [])])
def test_to_close_a_websocket_ends_no_task(last: str, found: list[str]) -> None:
    source = f"""
        import asyncio
        from fastapi import FastAPI

        app = FastAPI()

        @app.websocket("/answer")
        async def answer(websocket, llm):
            try:
                async for text in websocket.iter_text():
                    asyncio.create_task(llm.ainvoke(text))
            finally:
                {last}
    """
    assert codes(source) == found


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


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("    task.cancel()\n", ["HU003"]),
        ("    if late():\n        task.cancel()\n", ["HU003"]),
        ("    try:\n        await task\n    finally:\n        task.cancel()\n", []),
        ("    def stop():\n        task.cancel()\n    later(stop)\n", []),
    ],
)
def test_a_task_that_a_generator_cancels_only_after_its_last_yield(end: str, found: list[str]) -> None:
    assert codes(RULES["HU003"].bad.replace("    await task\n", end)) == found


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [
        ("begin()", "await queue.put(None)", ["HU003"]),
        ("begin()", "stop()", []),
        ("while waits():\n        begin()", "await queue.put(None)", ["HU003"]),
    ],
)
def test_a_task_that_a_function_inside_the_generator_starts(begin: str, end: str, found: list[str]) -> None:
    source = f"""
async def tokens(messages):
    queue = asyncio.Queue()
    task = None

    def begin():
        nonlocal task
        if task:
            task.cancel()
        task = asyncio.create_task(answer(messages, queue))

    def stop():
        task.cancel()

    {begin}
    try:
        while (text := await queue.get()) is not None:
            yield text
    finally:
        {end}

"""
    bad = RULES["HU003"].bad
    first, last = bad.index("async def tokens"), bad.index("@app.post")
    assert codes(bad[:first] + source + bad[last:]) == found


# HU005


def test_a_blocking_call_through_functions_of_the_module() -> None:
    source = """
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60)

        class Rag:
            def answer(self, question):
                reply = client.chat.completions.create(model="m", messages=[question], max_tokens=500)
                return reply.choices[0].message.content

        rag = Rag()

        @app.post("/ask")
        async def ask(question: str):
            return rag.answer(question)
    """
    assert codes(source) == ["HU005"]


def test_that_requests_block_an_async_function_is_left_to_others() -> None:
    """ruff and flake8-async report it as ASYNC210; that nobody watches the client, they do not."""
    source = """
        import requests
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/ask")
        async def ask(question: str):
            return requests.post("http://engine/v1/chat/completions", json={"model": "m", "messages": []}).json()
    """
    assert codes(source) == ["HU004"]


@pytest.mark.parametrize(("loop", "found"), [("for", ["HU005"]), ("async for", [])])
def test_a_plain_loop_over_a_stream_blocks(loop: str, found: list[str]) -> None:
    source = f"""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        import llm

        app = FastAPI()

        def parts(question):
            for chunk in llm.client.chat.completions.create(model="m", messages=[question], stream=True, max_tokens=9):
                yield chunk

        @app.post("/ask")
        async def ask(question: str):
            async def events():
                {loop} part in parts(question):
                    yield part
            return StreamingResponse(events())
    """
    assert codes(source) == found


def test_a_function_of_the_project_that_blocks_under_a_name_that_says_nothing() -> None:
    """Whether `generate` of something unknown blocks is not known; that of the project's own class is."""
    source = """
        from fastapi import FastAPI

        class Engine:
            def generate(self, prompt):
                return compute(prompt)

        app = FastAPI()
        engine = Engine()

        @app.post("/ask")
        async def ask(question: str):
            return engine.generate(question)
    """
    assert codes(source) == ["HU005"]
    assert codes(source.replace("def generate", "async def generate")) == []


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


def test_a_shield_against_a_timeout_alone() -> None:
    source = """
        import asyncio

        async def answer(engine, prompt):
            task = asyncio.create_task(engine.generate(prompt))
            try:
                while not task.done():
                    yield await asyncio.wait_for(asyncio.shield(task), 5)
            finally:
                {end}
    """
    assert "HU009" not in codes(source.replace("{end}", "task.cancel()"))
    assert "HU009" in codes(source.replace("{end}", "print('end')"))


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

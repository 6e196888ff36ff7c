"""HU005 is about loops that serve others as well: not about a loop of one's own, asynchronous APIs, or short polls."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths


def codes(source: str) -> list[str]:
    return [f.code for f in lint_source(dedent(source))]


@pytest.mark.parametrize("run", ["asyncio.run({})", "loop.run_until_complete({})"])
def test_the_loop_of_a_sync_view_is_nobody_elses(run: str) -> None:
    source = """
        import asyncio
        from flask import Flask
        from openai import OpenAI

        app = Flask(__name__)
        client = OpenAI()

        async def answer(text):
            return client.chat.completions.create(model="m", messages=[text], max_tokens=500)

        @app.post("/ask")
        def ask():
            return RUN
    """.replace("RUN", run.format("answer('hello')"))
    assert codes(source) == ["HU004"]
    shared = """
        from fastapi import FastAPI

        api = FastAPI()

        @api.post("/ask")
        async def other(text: str):
            return await answer(text)
    """
    assert sorted(codes(dedent(source) + dedent(shared))) == ["HU004", "HU005"]


def test_an_asynchronous_context_manager_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from pydantic_ai import Agent\nagent = Agent('m')\n")
    app = """
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from agent import agent

        app = FastAPI()

        @app.post("/ask")
        async def ask(text: str):
            async def tokens():
                async with agent.run_stream(text) as result:
                    async for part in result.stream_text():
                        yield part
            return StreamingResponse(tokens())
    """
    (tmp_path / "app.py").write_text(dedent(app))
    assert lint_paths([tmp_path]).findings == []
    blocking = dedent(app).replace("async with agent.run_stream(text) as result", "for result in agent.run_sync(text)")
    (tmp_path / "app.py").write_text(blocking)
    assert [f.code for f in lint_paths([tmp_path]).findings] == ["HU005"]


@pytest.mark.parametrize(("sleep", "code"), [("await asyncio.sleep(1)", "HU004"), ("time.sleep(1)", "HU005")])
def test_a_poll_between_sleeps_does_not_block(sleep: str, code: str) -> None:
    source = f"""
        import asyncio, time
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI()

        async def wait(run):
            while run.status == "queued":
                {sleep}
                run = client.beta.threads.runs.retrieve(thread_id="t", run_id=run.id)
            return run

        @app.post("/ask")
        async def ask(text: str):
            return await wait(start(text))
    """
    assert codes(source) == [code]


def test_an_async_view_of_flask_has_a_loop_of_its_own() -> None:
    source = """
        from flask import Flask
        from openai import OpenAI

        app = Flask(__name__)
        client = OpenAI()

        @app.post("/ask")
        async def ask():
            return client.chat.completions.create(model="m", messages=[], max_tokens=500).choices[0].message.content
    """
    assert codes(source) == ["HU004"]
    assert codes(source.replace("from flask import Flask", "from quart import Quart as Flask")) == ["HU005"]


GATHERED = """
    import asyncio
    from fastapi import FastAPI
    from google import genai

    app = FastAPI()
    client = genai.Client()

    @app.post("/ask")
    async def ask(text: str):
        {lines}
"""
ASYNC = "client.aio.models.generate_content(model='m', contents=text)"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((f"notes = {ASYNC}", f"script = {ASYNC}", "return await asyncio.gather(notes, script)"), "HU004"),
        ((f"notes = {ASYNC}", "return await notes"), "HU004"),
        ((f"notes = {ASYNC}", "return await asyncio.wait_for(notes, 60)"), "HU004"),
        ((f"return {ASYNC.replace('.aio', '')}",), "HU005"),
        ((f"notes = {ASYNC.replace('.aio', '')}", "await asyncio.sleep(1)", "return notes.text"), "HU005"),
    ],
)
def test_a_coroutine_that_is_awaited_later_blocks_nobody(lines: tuple[str, ...], found: str) -> None:
    assert codes(GATHERED.format(lines="\n        ".join(lines))) == [found]


def test_a_result_that_may_be_no_coroutine_blocks() -> None:
    lines = ("reply = client.models.generate_content(model='m', contents=text)", "if inspect.isawaitable(reply):")
    source = GATHERED.format(lines="\n        ".join((*lines, "    reply = await reply", "return reply.text")))
    assert codes(source) == ["HU005"]


READ = """
    import asyncio
    from fastapi import FastAPI
    from fastapi.concurrency import iterate_in_threadpool
    from fastapi.responses import StreamingResponse
    from openai import OpenAI

    app = FastAPI()

    class Writer:
        def __init__(self):
            self.client = OpenAI()

        def parts(self, text):
            return self.client.chat.completions.create(model="m", messages=[text], stream=True, max_tokens=500)

        def pieces(self, text):
            for part in self.parts(text):
                yield part

    writer = Writer()

    @app.post("/ask")
    async def ask(text: str):
        async def events():
            {lines}
                yield part
        {answer}
"""
STREAMED = "return StreamingResponse(events())"
COLLECTED = "return {'text': ''.join([part async for part in events()])}"
PARTS = "asyncio.to_thread(writer.parts, text)"
OPENED = "asyncio.to_thread(writer.client.chat.completions.create, model='m', messages=[text], stream=True)"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("made = writer.parts(text)", "for part in made:"), ["HU005"]),
        (("made = writer.parts(text)", "async for part in iterate_in_threadpool(made):"), []),
        (("for part in [piece for piece in writer.pieces(text)]:",), ["HU005"]),
        (("async for part in iterate_in_threadpool(piece for piece in writer.pieces(text)):",), []),
        ((f"made = await {PARTS}", "for part in made:"), ["HU005"]),
        ((f"for part in await {PARTS}:",), ["HU005"]),
        ((f"made = await {PARTS}", "async for part in iterate_in_threadpool(made):"), []),
        ((f"made = await {OPENED}", "for part in made:"), ["HU005"]),
        ((f"made = await {OPENED.replace('True', 'False')}", "for part in made:"), []),
        ((f"made = await {PARTS}", "made = await asyncio.to_thread(list, made)", "for part in made:"), []),
    ],
)
def test_a_plain_loop_over_what_holds_a_stream_blocks(lines: tuple[str, ...], found: list[str]) -> None:
    assert codes(READ.format(lines="\n            ".join(lines), answer=STREAMED)) == found


@pytest.mark.parametrize(
    ("loop", "found"),
    [("for part in made:", "HU005"), ("async for part in iterate_in_threadpool(made):", "HU004")],
)
def test_an_async_generator_that_reads_a_stream_in_a_thread_does_not_block(loop: str, found: str) -> None:
    source = READ.format(lines=f"made = writer.pieces(text)\n            {loop}", answer=COLLECTED)
    assert codes(source) == [found]


@pytest.mark.parametrize(
    ("name", "called", "found"),
    [
        ("transcribe", "translate", ["HU005"]),
        ("speech_to_text", "summarize_text", ["HU005"]),
        ("transcribe", "synthesize", []),
        ("check_model", "chat", []),
    ],
)
def test_a_handler_for_media_that_also_writes_a_text(name: str, called: str, found: list[str]) -> None:
    source = f"""
        from fastapi import FastAPI
        from llama_cpp import Llama

        app = FastAPI()
        llm = Llama("model.gguf")

        def {called}(text):
            return llm.create_completion(text)

        @app.post("/audio")
        async def {name}(text: str):
            return {{"text": {called}(text)}}
    """
    assert codes(source) == found

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
            return client.chat.completions.create(model="m", messages=[text], max_tokens=5)

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

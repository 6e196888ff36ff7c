"""The message names only what is certain, and work that nobody waits for is not reported."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import lint_source

CHAINED = """
    from abc import ABC, abstractmethod
    from fastapi import FastAPI
    from openai import AsyncOpenAI

    app = FastAPI()
    client = AsyncOpenAI()

    class Base(ABC):
        @abstractmethod
        async def ask(self, text): ...

    class One(Base):
        async def ask(self, text):
            return await client.chat.completions.create(model="one", messages=[text], max_tokens=500)

    class Two(Base):
        async def ask(self, text):
            return await client.chat.completions.create(model="two", messages=[text], max_tokens=500)

    def choose(name) -> Base:
        return found[name]

    async def branch(text, provider):
        if provider:
            return await provider.whatever(text)
        else:
            return await One().ask(text)

    async def early(text, provider):
        if provider:
            return await provider.whatever(text)
        return await One().ask(text)

    async def plain(text):
        if not text:
            return None
        return await One().ask(text)

    @app.post("/ask")
    async def ask(text: str):
        return await {call}
"""


@pytest.mark.parametrize(
    ("call", "certain"),
    [
        ("One().ask(text)", True),
        ("plain(text)", True),
        ("choose(text).ask(text)", False),
        ("branch(text, text)", False),
        ("early(text, text)", False),
    ],
)
def test_the_chain_is_named_where_it_is_certain(call: str, certain: bool) -> None:
    (finding,) = lint_source(dedent(CHAINED).replace("{call}", call))
    assert finding.code == "HU004"
    assert ("client.chat.completions.create" in finding.message) is certain


STARTED = """
    import asyncio
    from fastapi import BackgroundTasks, FastAPI
    from fastapi.responses import StreamingResponse
    from openai import OpenAI

    app = FastAPI()
    client = OpenAI()

    async def work(text):
        found = client.chat.completions.create(model="m", messages=[text], max_tokens=500)
        print(found)

    @app.post("/ask")
    async def ask(text: str, tasks: BackgroundTasks):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tasks.add_task(work, text)", []),
        ("asyncio.create_task(work(text))", []),
        ("task = asyncio.create_task(work(text))\n    return {'id': id(task)}", []),
        ("task = asyncio.create_task(work(text))\n    return await task", ["HU005"]),
        ("await work(text)", ["HU005"]),
    ],
)
def test_a_loop_that_is_blocked_for_nobody(body: str, expected: list[str]) -> None:
    assert [f.code for f in lint_source(dedent(STARTED).replace("{body}", body))] == expected


def test_what_runs_after_the_client_has_left() -> None:
    source = """
        from fastapi import FastAPI, WebSocket
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI()

        async def analyse(text):
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

        @app.websocket("/talk")
        async def talk(socket: WebSocket):
            text = ""
            try:
                while True:
                    text += await socket.receive_text()
            finally:
                await analyse(text)
    """
    assert lint_source(dedent(source)) == []
    assert [f.code for f in lint_source(dedent(source).replace("text += await", "await analyse(text); text += await"))] == [
        "HU004"
    ]


def test_a_function_that_was_read_is_not_judged_by_the_route() -> None:
    source = """
        from fastapi import FastAPI

        app = FastAPI()

        async def generate_title(text):
            return text[:20]

        @app.post("/v1/chat/completions")
        async def title(text: str):
            return {"title": await generate_title(text)}
    """
    assert lint_source(dedent(source)) == []

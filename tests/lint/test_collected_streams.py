"""Who reads a stream to its end before it sends anything waits for a whole generation; so does a generator that makes one."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from hangup.lint import lint_source

APP = """
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI()

async def parts(text):
    async for part in await client.responses.create(model="m", input=text, stream=True):
        yield part.delta
"""


def codes(signature: str, body: str) -> list[str]:
    return [f.code for f in lint_source(f"{APP}\n{signature}\n{indent(dedent(body), '    ')}\n")]


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("    answer += part", ["HU004"]),
        ("    if part.strip():\n        pieces.append(part)", ["HU004"]),
        ("    answer += part\n    await websocket.send_text(part)", []),
        ("    answer += part\n    tell(part)", []),
    ],
)
def test_a_loop_that_sends_nothing_notices_no_disconnect(loop: str, found: list[str]) -> None:
    body = f"text = await websocket.receive_text()\nasync for part in parts(text):\n{loop}\nawait websocket.send_text(answer)"
    assert codes('@app.websocket("/chat")\nasync def chat(websocket: WebSocket):', body) == found


@pytest.mark.parametrize("answer", ["''.join([p async for p in parts(text)])", "join([p async for p in parts(text)])"])
def test_a_comprehension_sends_nothing(answer: str) -> None:
    body = f"text = await websocket.receive_text()\nawait websocket.send_text({answer})"
    assert codes('@app.websocket("/chat")\nasync def chat(websocket: WebSocket):', body) == ["HU004"]


@pytest.mark.parametrize(
    ("answer", "found"), [("return {'text': ''.join(made)}", ["HU004"]), ("return StreamingResponse(iter(made))", [])]
)
def test_a_handler_that_collects_a_stream_for_those_who_want_none(answer: str, found: list[str]) -> None:
    body = f"""
        if body["stream"]:
            return StreamingResponse(parts(body["text"]))
        made = [part async for part in parts(body["text"])]
        {answer}
    """
    assert codes('@app.post("/chat")\nasync def chat(body: dict):', body) == found


OPENED = "client.responses.create(model='m', input=text, stream=True)"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("return [p async for p in parts(text)]", ["HU004"]),
        (f"return [p.delta async for p in await {OPENED}]", ["HU004"]),
        (f"async for p in await {OPENED}:\n    answer += p.delta\nreturn answer", ["HU004"]),
        (f"made = await {OPENED}\nanswer = [p.delta async for p in made]\nreturn answer", ["HU004"]),
        (f"return await {OPENED}", []),
        (f"made = await {OPENED}\ntell({{name: made.headers[name] for name in made.headers}})\nreturn made", []),
        ("return (p async for p in parts(text))", []),
    ],
)
def test_a_function_that_reads_a_whole_stream(lines: str, found: list[str]) -> None:
    whole = f"async def whole(text):\n{indent(lines, '    ')}\n"
    answer = "made = await whole(text)\nreturn {'text': made}" if found else "return StreamingResponse(await whole(text))"
    assert codes(f'{whole}\n@app.post("/chat")\nasync def chat(text: str):', answer) == found


SYNC = """
from flask import Flask, Response, stream_with_context
from openai import OpenAI

app = Flask(__name__)
client = OpenAI()

def answer(text):
    made = client.responses.create(model="m", input=text)
    return made.output_text

def words(text):
    for word in answer(text).split():
        yield word
"""


@pytest.mark.parametrize(
    ("generator", "found"),
    [
        ("made = answer(text)\nyield made", ["HU004"]),
        ("yield from words(text)", ["HU004"]),
        ("for word in words(text):\n    yield word", ["HU004"]),
        ("for part in client.responses.create(model='m', input=text, stream=True):\n    yield part", []),
        ("topic = answer(text)\nfor part in client.responses.create(model='m', input=topic, stream=True):\n    yield part", []),
        ("for part in client.responses.create(model='m', input=text, stream=streams):\n    yield part", []),
        ("yield text", []),
    ],
)
@pytest.mark.parametrize("answer", ["Response(events())", "Response(stream_with_context(events()))"])
def test_a_generator_that_waits_for_a_whole_generation(generator: str, answer: str, found: list[str]) -> None:
    body = f"def events():\n{indent(generator, '    ')}\nreturn {answer}"
    source = f"{SYNC}\n@app.post('/chat')\ndef chat(text):\n{indent(body, '    ')}\n"
    assert [f.code for f in lint_source(source)] == found

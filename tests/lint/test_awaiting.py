"""Coroutines and tasks that are made in one line and awaited in another: the handler waits for them all the same."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from hangup.lint import lint_source

HANDLER = """
import asyncio
from fastapi import FastAPI
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI()

async def answer(text):
    return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

@app.post("/ask")
async def ask(texts: list[str]):
"""


def codes(body: str) -> list[str]:
    return [f.code for f in lint_source(HANDLER + indent(dedent(body), "    "))]


@pytest.mark.parametrize(
    "body",
    [
        "answers = [answer(t) for t in texts]\nreturn await asyncio.gather(*answers)",
        "answers = {t: answer(t) for t in texts}\nreturn await asyncio.gather(*answers.values())",
        "answers = {'all': answer(texts)}\nreturn await asyncio.gather(*answers.values())",
        "answers: list = [answer(t) for t in texts]\nreturn await asyncio.gather(*answers)",
        "answers = []\nfor t in texts:\n    answers.append(answer(t))\nreturn await asyncio.gather(*answers)",
        "answers = [answer(t) for t in texts]\nfor done in asyncio.as_completed(answers):\n    return await done",
        "task = asyncio.create_task(answer(texts))\nreturn await task",
        "answers = []\nfor t in texts:\n    made = answer(t)\n    answers.append(made)\nreturn await asyncio.gather(*answers)",
        "answers = [answer(t) for t in texts]\nreturn await asyncio.wait_for(asyncio.gather(*answers), 30)",
        "answers = [answer(texts), answer(texts)]\nreturn [await answers[0], await answers[1]]",
        "answers = []\nfor t in texts:\n    answers.append((t, answer(t)))\nreturn [await pair[1] for pair in answers]",
        "answers = [(t, answer(t)) for t in texts]\nreturn await asyncio.gather(*[made for _, made in answers])",
        "pairs = [(t, answer(t)) for t in texts]\nanswers = [pair[1] for pair in pairs]\nreturn await asyncio.gather(*answers)",
        "answers = {}\nfor t in texts:\n    answers[t] = answer(t)\nreturn [await made for made in answers.values()]",
        "answers = [answer(t) for t in texts]\nfor t, made in zip(texts, answers):\n    return {t: await made}",
        "answers = [answer(t) for t in texts]\nfor number, (t, made) in enumerate(zip(texts, answers)):\n    return await made",
    ],
)
def test_what_is_awaited_later(body: str) -> None:
    assert codes(body) == ["HU004"]


@pytest.mark.parametrize(
    "body",
    [
        "answers = [answer(t) for t in texts]\nothers = []\nreturn await asyncio.gather(*others)",
        "answers = [answer(t) for t in texts]\nothers = []\nfor t, other in zip(answers, others):\n    return await other",
        "task = asyncio.create_task(answer(texts))\nguard = asyncio.create_task(stop_when_gone(task))\nreturn await task",
        "task = asyncio.create_task(answer(texts))\nwhile await waits():\n    task.cancel()\nreturn await task",
    ],
)
def test_what_is_not_awaited_or_may_be_cancelled(body: str) -> None:
    assert "HU004" not in codes(body)


BLOCKING = """
from concurrent.futures import ThreadPoolExecutor
from fastapi import FastAPI
from openai import OpenAI

app = FastAPI()
client = OpenAI()
pool = ThreadPoolExecutor()

def compute(text):
    return client.responses.create(model="m", input=text)

def answer(text):
{body}

@app.post("/ask")
async def ask(text: str):
    return {wait}
"""


@pytest.mark.parametrize(
    "body",
    [
        "made = pool.submit(compute, text)\nreturn made.result()",
        "return pool.submit(compute, text).result()",
        "made = []\nwith ThreadPoolExecutor() as own:\n    made.append(own.submit(compute, text))\nreturn shown(made)",
        "with ThreadPoolExecutor() as own:\n    made = own.submit(compute, text)\nreturn shown(made)",
        "with ThreadPoolExecutor() as own:\n    return list(own.map(compute, [text]))",
        "made = {pool.submit(compute, t): t for t in text}\nfor done in as_completed(made):\n    return done.result()",
    ],
)
def test_who_waits_for_the_result_of_a_thread_blocks(body: str) -> None:
    source = BLOCKING.format(body=indent(body, "    "), wait="answer(text)")
    assert [f.code for f in lint_source(source)] == ["HU005"]
    source = BLOCKING.format(body=indent(body, "    "), wait="await asyncio.to_thread(answer, text)")
    assert [f.code for f in lint_source(source)] == ["HU004"]


@pytest.mark.parametrize(
    "body",
    [
        "made = pool.submit(compute, text)\nreturn {}",
        "made = pool.map(compute, [text])\nreturn {}",
        "own = ThreadPoolExecutor()\nown.submit(compute, text)\nreturn {}",
        "with ThreadPoolExecutor() as own:\n    own.submit(compute, text)\n    own.shutdown(wait=False)\nreturn {}",
        "with ThreadPoolExecutor() as own:\n    return list(map(compute, []))",
    ],
)
def test_who_only_gives_work_to_a_thread_waits_for_nothing(body: str) -> None:
    assert lint_source(BLOCKING.format(body=indent(body, "    "), wait="answer(text)")) == []


def test_who_awaits_the_result_of_a_thread_does_not_block() -> None:
    body = "made = pool.submit(compute, text)\nreturn await asyncio.wrap_future(made)"
    source = BLOCKING.replace("def answer", "async def answer").format(body=indent(body, "    "), wait="await answer(text)")
    assert [f.code for f in lint_source(source)] == ["HU004"]


@pytest.mark.parametrize(
    ("loop", "found"),
    [("for chunk in stream:", ["HU005", "HU004"]), ("async for chunk in iterate_in_threadpool(stream):", ["HU004"])],
)
def test_a_stream_that_a_thread_opens_is_passed_on(loop: str, found: list[str]) -> None:
    source = """
from fastapi import FastAPI
from openai import OpenAI

app = FastAPI()
client = OpenAI()

async def parts(text):
    def opened():
        return client.chat.completions.create(model="m", messages=[text], max_tokens=500, stream=True)

    stream = await asyncio.to_thread(opened)
    LOOP
        yield chunk

@app.post("/ask")
async def ask(text: str):
    return "".join([part async for part in parts(text)])
""".replace("LOOP", loop)
    assert [f.code for f in lint_source(source)] == found

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
    ],
)
def test_what_is_awaited_later(body: str) -> None:
    assert codes(body) == ["HU004"]


@pytest.mark.parametrize(
    "body",
    [
        "answers = [answer(t) for t in texts]\nothers = []\nreturn await asyncio.gather(*others)",
        "task = asyncio.create_task(answer(texts))\nguard = asyncio.create_task(stop_when_gone(task))\nreturn await task",
        "task = asyncio.create_task(answer(texts))\nwhile await waits():\n    task.cancel()\nreturn await task",
    ],
)
def test_what_is_not_awaited_or_may_be_cancelled(body: str) -> None:
    assert "HU004" not in codes(body)

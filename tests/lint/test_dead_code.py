"""Code that is never run, and branches and routers that nothing in the project leads to."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from hangup.lint import RULES, lint_source

HANDLER = """
from fastapi import FastAPI
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI()

@app.post("/ask")
async def ask(text: str, rows: list):
{body}
"""
ASKS = "return await client.chat.completions.create(model='m', messages=[text], max_tokens=5)"


def codes(body: str) -> list[str]:
    source = HANDLER.format(body=indent(dedent(body).strip(), "    "))
    return [finding.code for finding in lint_source(source, codes=list(RULES))]


@pytest.mark.parametrize(
    "body",
    [
        f"return text\n{ASKS}",
        f"raise ValueError(text)\n{ASKS}",
        f"if text:\n    return text\nelif rows:\n    raise ValueError\nelse:\n    return rows\n{ASKS}",
        f"try:\n    return rows[0]\nexcept IndexError:\n    raise ValueError from None\n{ASKS}",
        f"try:\n    return rows[0]\nexcept IndexError:\n    return text\nelse:\n    {ASKS}",
        f"try:\n    rows.sort()\nfinally:\n    return rows\n{ASKS}",
        f"for row in rows:\n    continue\n    {ASKS}\nreturn rows",
        f"for row in rows:\n    if row:\n        break\n    else:\n        continue\n    {ASKS}\nreturn rows",
        f"return text\nif rows:\n    {ASKS}",
    ],
)
def test_what_follows_the_end_of_a_block_is_never_run(body: str) -> None:
    assert codes(body) == []


@pytest.mark.parametrize(
    "body",
    [
        f"if text:\n    return text\n{ASKS}",
        f"if text:\n    return text\nelse:\n    rows.sort()\n{ASKS}",
        f"try:\n    return rows[0]\nexcept IndexError:\n    rows.sort()\n{ASKS}",
        f"try:\n    rows.sort()\nexcept IndexError:\n    return text\n{ASKS}",
        f"for row in rows:\n    return row\n{ASKS}",
        f"with suppress(IndexError):\n    return rows[0]\n{ASKS}",
    ],
)
def test_what_may_come_to_the_end_of_a_block_goes_on(body: str) -> None:
    assert codes(body) == ["HU004"]


def test_nobody_watches_in_code_that_is_never_run() -> None:
    assert codes(f"{ASKS}\nawait request.is_disconnected()") == ["HU004"]


def test_a_yield_that_is_never_run_still_makes_a_generator() -> None:
    source = """
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI()

        def empty(text):
            client.chat.completions.create(model="m", messages=[text], max_tokens=5)
            return
            yield text

        @app.post("/ask")
        async def ask(text: str):
            empty(text)
    """
    assert lint_source(dedent(source), codes=list(RULES)) == []

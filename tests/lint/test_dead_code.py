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
ASKS = "return await client.chat.completions.create(model='m', messages=[text], max_tokens=500)"


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
            client.chat.completions.create(model="m", messages=[text], max_tokens=500)
            return
            yield text

        @app.post("/ask")
        async def ask(text: str):
            empty(text)
    """
    assert lint_source(dedent(source), codes=list(RULES)) == []


INNER = "async def inner(text):\n    return blocking.chat.completions.create(model='m', messages=[text]).choices\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (INNER + "return text", []),
        (INNER.replace("return", "if text: return inner\n    return") + "return text", []),
        (INNER + "return await inner(text)", ["HU005"]),
        (INNER + "async def other():\n    return await inner(text)\nreturn await other()", ["HU005"]),
        ("@rows[0]\n" + INNER + "return text", ["HU005"]),
        (INNER + "return locals()", ["HU005"]),
        ("global inner\n" + INNER + "return text", ["HU005"]),
    ],
)
def test_a_function_inside_another_is_run_if_something_there_names_it(body: str, found: list[str]) -> None:
    source = HANDLER.format(body=indent(body, "    ")) + "\n\nfrom openai import OpenAI\nblocking = OpenAI(timeout=60)\n"
    assert [finding.code for finding in lint_source(source)] == found


@pytest.mark.parametrize(
    ("tokens", "found"), [("5", []), ("50", []), ("51", ["HU004"]), ("limit", ["HU004"]), ("-1", ["HU004"])]
)
def test_an_answer_of_a_few_tokens_is_a_label(tokens: str, found: list[str]) -> None:
    assert codes(ASKS.replace("500", tokens)) == found

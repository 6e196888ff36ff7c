"""Branches that a request chooses: what only another value than the declared default leads to is not reported."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

SOURCE = """
    import asyncio
    from fastapi import FastAPI, Query
    from openai import OpenAI, AsyncOpenAI
    from pydantic import BaseModel, Field

    app = FastAPI()
    client = AsyncOpenAI()
    blocking = OpenAI()

    class Body(BaseModel):
        text: str
        stream: bool = True
        enhance: bool = Field(False, description="with a model")
        note: str | None = None

    async def complete(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=5)

    def block(text):
        return blocking.chat.completions.create(model="m", messages=[text], max_tokens=5)

    async def improve(text, enhance):
        if enhance:
            return block(text)
        return text

    async def answer(text, body: Body):
        if body.stream:
            return start(text)
        return await complete(text)

    async def either(text, body: Body):
        if body.stream:
            return await asyncio.gather(*[complete(t) for t in text])
        else:
            return await complete(text)

    @app.post("/ask")
    async def ask(text: str, body: Body, enhance: bool = Query(False), plain: bool = True, note: str | None = None):
        {lines}
"""


def codes(*lines: str) -> list[str]:
    return [f.code for f in lint_source(dedent(SOURCE.format(lines="\n        ".join(lines))))]


@pytest.mark.parametrize(
    "lines",
    [
        ("if enhance:", "    text = await complete(text)", "return text"),
        ("if not plain:", "    text = await complete(text)", "return text"),
        ("if plain: return text", "return await complete(text)"),
        ("if body.enhance:", "    text = await complete(text)", "return text"),
        ("return await improve(text, enhance)",),
        ("return await improve(text, enhance=body.enhance)",),
        ("return await answer(text, body)",),
    ],
)
def test_what_the_default_does_not_lead_to(lines: tuple[str, ...]) -> None:
    assert codes(*lines) == []


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("if plain:", "    text = await complete(text)", "return text"), "HU004"),
        (("if note:", "    text = await complete(text)", "return text"), "HU004"),
        (("if body.note:", "    text = await complete(text)", "return text"), "HU004"),
        (("if body.stream:", "    text = await complete(text)", "return text"), "HU004"),
        (("if enhance or text:", "    text = await complete(text)", "return text"), "HU004"),
        (("return await improve(text, True)",), "HU005"),
        (("return await improve(text, text)",), "HU005"),
        (("return await either(text, body)",), "HU004"),
    ],
)
def test_what_the_default_leads_to(lines: tuple[str, ...], found: str) -> None:
    assert codes(*lines) == [found]


def test_a_class_that_several_files_define_says_nothing(tmp_path: Path) -> None:
    lines = "if body.enhance:\n        text = await complete(text)\n    return text"
    (tmp_path / "app.py").write_text(dedent(SOURCE.replace("{lines}", "LINES")).replace("LINES", lines))
    assert lint_paths([tmp_path]).likely == 0
    (tmp_path / "other.py").write_text("class Body:\n    enhance: bool = True\n")
    assert lint_paths([tmp_path]).likely == 1

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
        provider: str = Field("local", description="local, remote or auto")

    async def complete(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    def block(text):
        return blocking.chat.completions.create(model="m", messages=[text], max_tokens=500)

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

    async def choose(text, provider="local"):
        if provider == "remote":
            return await complete(text)
        elif provider in ("auto", "best"):
            return await complete(text)
        return text

    @app.post("/ask")
    async def ask(
        text: str, body: Body, enhance: bool = Query(False), plain: bool = True, note: str | None = None, mode: str = "fast"
    ):
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
        ("if body.provider == 'remote':", "    text = await complete(text)", "return text"),
        ("if body.provider in ['remote', 'auto']:", "    text = await complete(text)", "return text"),
        ("if body.provider != 'remote':", "    return text", "return await complete(text)"),
        ("if mode == 'deep':", "    text = await complete(text)", "return text"),
        ("return await choose(text)",),
        ("return await choose(text, 'local')",),
        ("return await choose(text, provider='other')",),
        ("return await choose(text, body.provider)",),
        ("return await choose(text, mode)",),
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
        (("if body.provider == 'local':", "    text = await complete(text)", "return text"), "HU004"),
        (("if body.provider in ['local', 'auto']:", "    text = await complete(text)", "return text"), "HU004"),
        (("if body.provider != 'remote':", "    text = await complete(text)", "return text"), "HU004"),
        (("if body.note == 'long':", "    text = await complete(text)", "return text"), "HU004"),
        (("if mode == 'fast':", "    text = await complete(text)", "return text"), "HU004"),
        (("return await choose(text, 'auto')",), "HU004"),
        (("return await choose(text, text)",), "HU004"),
        (("return await choose(text, provider=text.strip())",), "HU004"),
    ],
)
def test_what_the_default_leads_to(lines: tuple[str, ...], found: str) -> None:
    assert codes(*lines) == [found]


def test_of_classes_with_one_name_that_of_the_same_file_counts(tmp_path: Path) -> None:
    lines = "if body.enhance:\n        text = await complete(text)\n    return text"
    app = dedent(SOURCE.replace("{lines}", "LINES")).replace("LINES", lines)
    (tmp_path / "other.py").write_text("class Body(BaseModel):\n    enhance: bool = True\n")
    (tmp_path / "app.py").write_text(app)
    assert not lint_paths([tmp_path]).findings
    (tmp_path / "third.py").write_text("class Body(BaseModel):\n    enhance: bool = False\n")
    (tmp_path / "app.py").write_text("from other import Body\n" + app.replace("class Body(", "class Unused("))
    assert len(lint_paths([tmp_path]).findings) == 1


def test_a_field_of_a_base_class(tmp_path: Path) -> None:
    lines = "if body.enhance:\n        text = await complete(text)\n    return text"
    app = (
        dedent(SOURCE.replace("{lines}", "LINES")).replace("LINES", lines).replace("body: Body, enhance", "body: More, enhance")
    )
    (tmp_path / "app.py").write_text(
        app.replace("async def complete", "class More(Body):\n    more: str = ''\n\nasync def complete")
    )
    assert not lint_paths([tmp_path]).findings
    more = "class More(Body):\n    enhance: bool = True\n\nasync def complete"
    (tmp_path / "app.py").write_text(app.replace("async def complete", more))
    assert len(lint_paths([tmp_path]).findings) == 1

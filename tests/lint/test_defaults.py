"""Conditions that a setting decides: what its default rules out is not reported."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

SOURCE = """
    import os
    from fastapi import FastAPI
    from openai import AsyncOpenAI

    app = FastAPI()
    client = AsyncOpenAI()
    USE_MODEL = os.getenv("USE_MODEL", "false").lower() == "true"
    ON = env_bool("ON", True)
    ALLOWED = set()
    SESSIONS = {}
    FAMILY = "rules"

    def begin(session):
        SESSIONS[session.id] = session

    def is_enabled():
        if not os.environ.get("KEY"):
            return False
        return USE_MODEL

    def is_blocked(task):
        if not USE_MODEL:
            return "the model is off"
        return None

    async def complete(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def guarded(text, real=True):
        models = ["a"] if real else []
        for model in models:
            return await complete(model)
        return text

    @app.post("/ask")
    async def ask(text: str):
        mode = (os.getenv("MODE", "rules") or "rules").strip().lower()
        key = os.getenv("API_KEY", "")
        {body}
        return text
"""


def codes(body: str) -> list[str]:
    lines = dedent(body).strip().replace("\n", "\n        ")
    return [
        finding.code for finding in lint_source(dedent(SOURCE).replace("    {body}", "    " + lines.replace("\n    ", "\n")))
    ]


OFF = [
    "if USE_MODEL:\n    return await complete(text)",
    "if not USE_MODEL:\n    return text\nreturn await complete(text)",
    "try:\n    if mode != 'llm':\n        return text\n    return await complete(text)\nexcept OSError:\n    pass",
    "if mode == 'llm' and text:\n    return await complete(text)",
    "if FAMILY == 'models':\n    return await complete(text)",
    "if (os.getenv('REFINE') or '').lower() in ('1', 'true'):\n    return await complete(text)",
    "if text in ALLOWED:\n    return await complete(text)",
    "if is_enabled():\n    return await complete(text)",
    "if is_blocked() is None:\n    return await complete(text)",
    "real = USE_MODEL and bool(text)\nreturn await guarded(text, real=real)",
    "return await guarded(text, USE_MODEL)",
]
ON = [
    "if not USE_MODEL:\n    return await complete(text)",
    "if ON:\n    return await complete(text)",
    "if text not in SESSIONS:\n    return text\nreturn await complete(text)",
    "if mode == 'rules':\n    return await complete(text)",
    "if not key:\n    return text\nreturn await complete(text)",
    "if key is not None:\n    return await complete(text)",
    "if text == 'x':\n    return await complete(text)",
    "if mode == 'llm':\n    text = 'x'\nreturn await complete(text)",
    "if unknown():\n    return await complete(text)",
    "if text not in ALLOWED:\n    return await complete(text)",
    "return await guarded(text, ON)",
    "return await guarded(text)",
]


@pytest.mark.parametrize("body", OFF)
def test_what_a_default_rules_out(body: str) -> None:
    assert codes(body) == []


@pytest.mark.parametrize("body", ON)
def test_what_a_default_allows(body: str) -> None:
    assert codes(body) == ["HU004"]


SETTINGS = """
    from pydantic import Field
    from pydantic_settings import BaseSettings

    class Settings(BaseSettings):
        expand: bool = Field(
            default={default},
            description="rewrites the query",
        )
        api_key: str = ""
        tasks: str = ""

        @property
        def listed(self):
            return frozenset(t for t in self.tasks.split(",") if t)

        def allows(self, task):
            return self.expand and bool(task)

    settings = Settings()
"""
APP = """
    from fastapi import FastAPI
    from openai import AsyncOpenAI
    from settings import settings

    app = FastAPI()
    client = AsyncOpenAI()

    class Search:
        def __init__(self):
            self.expand = settings.expand

        async def run(self, text):
            if not {condition}:
                return text
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    @app.post("/search")
    async def ask(text: str):
        return await Search().run(text)
"""


@pytest.mark.parametrize(
    ("default", "condition", "reported"),
    [
        ("False", "settings.expand", 0),
        ("False", "self.expand", 0),
        ("False", "settings.allows(text)", 0),
        ("False", "(text in settings.listed)", 0),
        ("False", "settings.api_key", 1),
        ("True", "settings.expand", 1),
        ("True", "self.expand", 1),
        ("True", "settings.allows(text)", 1),
    ],
)
def test_settings_of_another_file(tmp_path: Path, default: str, condition: str, reported: int) -> None:
    (tmp_path / "settings.py").write_text(dedent(SETTINGS).replace("{default}", default))
    (tmp_path / "app.py").write_text(dedent(APP).replace("{condition}", condition))
    assert len(lint_paths([tmp_path]).findings) == reported


def test_a_setting_that_is_switched_on_somewhere(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(dedent(SETTINGS).replace("{default}", "False"))
    (tmp_path / "app.py").write_text(dedent(APP).replace("{condition}", "settings.expand"))
    (tmp_path / "production.py").write_text("from settings import Settings\n\nsettings = Settings(expand=True)\n")
    assert len(lint_paths([tmp_path]).findings) == 1

"""What stands in for a model until somebody chooses one: nothing is reported, or nothing is certain."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint.finding import Certainty, Finding
from hangup.lint.run import lint_paths
from hangup.lint.settings import LintSettings, SettingsTree

PROVIDERS = """
    from config import Settings, get_settings
    from openai import AsyncOpenAI

    class Provider:
        async def answer(self, text): ...

    class OpenAIProvider(Provider):
        async def answer(self, text):
            return await AsyncOpenAI().chat.completions.create(model="m", messages=[text], max_tokens=500)

    class MockProvider(Provider):
        async def answer(self, text):
            return "a fixed answer"

    def get_provider(settings: Settings | None = None, provider: str | None = None) -> Provider:
        settings = settings or get_settings()
        provider = provider or settings.llm_provider
        if provider == "openai" and settings.openai_key:
            return OpenAIProvider()
        return MockProvider()
"""
CONFIG = """
    import os

    class Settings:
        openai_key: str = os.getenv("OPENAI_KEY", "")
        llm_provider: str = {default}

    def get_settings():
        return Settings()
"""
APP = """
    from fastapi import FastAPI
    from pydantic import BaseModel
    from providers import get_provider

    app = FastAPI()

    class Question(BaseModel):
        text: str
        llm_provider: str | None = None

    @app.post("/ask")
    async def ask(question: Question):
        return await get_provider().answer(question.text)
"""


def findings(root: Path) -> list[Finding]:
    return lint_paths([root], SettingsTree(LintSettings(certainty=Certainty.LIKELY))).findings


def found(root: Path, default: str = '"mock"', providers: str = PROVIDERS, app: str = APP) -> list[str]:
    files = {"config.py": CONFIG.replace("{default}", default), "providers.py": providers, "app.py": app}
    for name, text in files.items():
        (root / name).write_text(dedent(text))
    return [f"{finding.code} {finding.certainty}" for finding in findings(root)]


@pytest.mark.parametrize("default", ['"mock"', 'os.getenv("LLM_PROVIDER", "mock")', '"none"'])
def test_a_class_that_is_made_only_with_another_setting_runs_nothing(tmp_path: Path, default: str) -> None:
    assert found(tmp_path, default) == []


def test_where_a_project_lies_does_not_make_its_files_settings(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    assert found(tmp_path / "config") == []


def test_the_class_that_is_made_by_default_runs_its_model(tmp_path: Path) -> None:
    assert found(tmp_path, '"openai"') == ["HU004 certain"]


def test_what_is_not_known_of_a_setting_rules_nothing_out(tmp_path: Path) -> None:
    assert found(tmp_path, 'os.environ["LLM_PROVIDER"]') == ["HU004 certain"]


@pytest.mark.parametrize(
    "more",
    [
        "ALL = [OpenAIProvider]",
        "class Quick(OpenAIProvider):\n    pass",
        "def other():\n    return OpenAIProvider()",
        "NAMES = {'real': 'providers.OpenAIProvider'}",
    ],
)
def test_what_may_be_made_elsewhere_is_not_ruled_out(tmp_path: Path, more: str) -> None:
    assert found(tmp_path, providers=dedent(PROVIDERS) + more + "\n") == ["HU004 likely"]


def test_what_is_exported_is_not_made(tmp_path: Path) -> None:
    assert found(tmp_path, providers=dedent(PROVIDERS) + '__all__ = ["OpenAIProvider", "get_provider"]\n') == []


def test_another_model_that_is_used_by_default_does_not_stand_in(tmp_path: Path) -> None:
    other = PROVIDERS.replace("MockProvider", "LocalProvider").replace(
        'return "a fixed answer"', "return await self.local(text)"
    )
    assert found(tmp_path, '"local"', other) == ["HU004 certain"]


@pytest.mark.parametrize("name", ["llm_provider", "ai_generation_mode", "CHAT_MODEL_BACKEND"])
@pytest.mark.parametrize("value", ['"mock"', 'Field(default="deterministic")', 'os.getenv("LLM", "disabled")'])
def test_settings_that_choose_no_model_leave_nothing_certain(tmp_path: Path, name: str, value: str) -> None:
    plain = """
        from openai import AsyncOpenAI
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/ask")
        async def ask(text: str):
            return await AsyncOpenAI().chat.completions.create(model="m", messages=[text], max_tokens=500)
    """
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text(dedent(plain))
    (tmp_path / "app" / "settings.py").write_text(f"{name}: str = {value}\n")
    assert [f.certainty for f in findings(tmp_path)] == ["likely"]
    for other in ("WECHAT_PAY_MODE", "embedding_model_provider", "image_model_backend", "debug_mode"):
        (tmp_path / "app" / "settings.py").write_text(f"{other}: str = {value}\n")
        assert [f.certainty for f in findings(tmp_path)] == ["certain"], other


def test_the_settings_beside_the_routes_of_one_application(tmp_path: Path) -> None:
    """All files are in one package, so the first folders of their paths say nothing."""
    for folder in ("api", "core"):
        (tmp_path / folder).mkdir()
    (tmp_path / "core" / "config.py").write_text("llm_provider: str = 'mock'\n")
    head = "from fastapi import FastAPI\nfrom openai import OpenAI\napp = FastAPI()\n\n@app.post('/ask')\n"
    (tmp_path / "api" / "main.py").write_text(f"{head}def ask(text: str):\n    return OpenAI().responses.create(input=text)\n")
    assert [f.certainty for f in findings(tmp_path)] == ["likely"]


def test_the_settings_of_another_application_say_nothing(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "settings.py").write_text(f"llm_provider = {'mock' if folder == 'one' else 'openai'!r}\n")
        head = "from fastapi import FastAPI\nfrom openai import OpenAI\napp = FastAPI()\n\n@app.post('/ask')\n"
        body = "def ask(text: str):\n    return OpenAI().responses.create(model='m', input=text)\n"
        (tmp_path / folder / "main.py").write_text(head + body)
    assert [(Path(f.path).parent.name, f.certainty) for f in findings(tmp_path)] == [("one", "likely"), ("two", "certain")]

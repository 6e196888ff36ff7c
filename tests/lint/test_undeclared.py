"""Settings that nothing declares: reading one raises before the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangup.lint.run import lint_paths

APP = """
from fastapi import FastAPI, HTTPException
from openai import AsyncOpenAI
from core.config import settings

app = FastAPI()
client = AsyncOpenAI()

@app.post("/ask")
async def ask(text: str):
    {before}
    return await client.chat.completions.create(model={model}, messages=[text], max_tokens=500)
"""
CONFIG = (
    "from pydantic_settings import BaseSettings\n\nclass Settings(BaseSettings):\n    MODEL: str = 'm'\n    {more}\n\n{made}\n"
)
SWITCH = "if not settings.ENABLE_RAG:\n        raise HTTPException(501)"


def found(root: Path, before: str = SWITCH, model: str = "settings.MODEL", other: str = "", config: str = "") -> int:
    (root / "core").mkdir()
    (root / "core" / "config.py").write_text(config or CONFIG.format(more="", made="settings = Settings()"))
    (root / "app.py").write_text(APP.format(before=before, model=model))
    (root / "other.py").write_text(other)
    return len(lint_paths([root]).findings)


@pytest.mark.parametrize(
    ("before", "model"),
    [
        (SWITCH, "'m'"),
        ("if settings.ENABLE_RAG is None:\n        return ''", "'m'"),
        ("pass", "settings.OTHER_MODEL"),
    ],
)
def test_a_setting_that_is_not_declared(tmp_path: Path, before: str, model: str) -> None:
    assert found(tmp_path, before, model) == 0


@pytest.mark.parametrize(
    "config",
    [
        CONFIG.format(more="", made="def load() -> Settings:\n    return Settings()\n\nsettings = load()"),
        "class Settings:\n    MODEL = 'm'\n\nsettings = Settings()\n",
        "from dataclasses import dataclass\n\n@dataclass\nclass Settings:\n    MODEL: str = 'm'\n\nsettings = Settings()\n",
    ],
)
def test_classes_that_have_only_what_they_declare(tmp_path: Path, config: str) -> None:
    assert found(tmp_path, config=config) == 0


@pytest.mark.parametrize(
    "config",
    [
        CONFIG.format(more="ENABLE_RAG: bool = True", made="settings = Settings()"),
        CONFIG.format(more="model_config = {'extra': 'allow'}", made="settings = Settings()"),
        CONFIG.format(more="class Config:\n        extra = 'allow'", made="settings = Settings()"),
        CONFIG.format(more="def __getattr__(self, name):\n        return True", made="settings = Settings()"),
        CONFIG.format(more="", made="settings = Settings()\nsettings = load(Settings)"),
        CONFIG.format(more="", made="settings = load(Settings)"),
        "from base import Flags\n\nclass Settings(Flags):\n    MODEL = 'm'\n\nsettings = Settings()\n",
        "from base import BaseSettings\n\nclass Settings(BaseSettings):\n    MODEL = 'm'\n\nsettings = Settings()\n",
        "from base import fill\n\n@fill\nclass Settings:\n    MODEL = 'm'\n\nsettings = Settings()\n",
        "from dynaconf import Dynaconf\n\nsettings = Dynaconf()\n",
    ],
)
def test_settings_that_may_have_more(tmp_path: Path, config: str) -> None:
    assert found(tmp_path, config=config) == 1


@pytest.mark.parametrize(
    ("before", "other"),
    [
        ("if settings.MODEL == 'x':\n        return ''", ""),
        ("if not getattr(settings, 'ENABLE_RAG', True):\n        return ''", ""),
        ("if hasattr(settings, 'ENABLE_RAG') and not settings.ENABLE_RAG:\n        return ''", ""),
        ("if settings.MODEL == 'x' and settings.ENABLE_RAG:\n        return ''", ""),
        ("if settings.ENABLE_RAG if text else False:\n        return ''", ""),
        ("settings = load()\n    " + SWITCH, ""),
        (SWITCH, "from core.config import settings\nsettings.ENABLE_RAG = True\n"),
        (SWITCH, "from core.config import settings\nsettings.put('ENABLE_RAG', True)\n"),
        ("if settings.model_fields:\n        pass", ""),
    ],
)
def test_settings_that_are_there_or_not_read(tmp_path: Path, before: str, other: str) -> None:
    assert found(tmp_path, before, other=other) == 1

"""Routers that an application imports: those that it includes, and those that it forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangup.lint.run import lint_paths
from support.lint_sources import ROUTER

HEAD = "from fastapi import FastAPI\nfrom routes.rag import router as rag_router\napp = FastAPI()\n"
INCLUDES = "app.include_router(rag_router)\n"


def found(root: Path, app: str, others: dict[str, str] | None = None) -> list[str]:
    files = {"routes/chat.py": ROUTER, "routes/rag.py": ROUTER, "app.py": HEAD + app}
    for name, text in (files | (others or {})).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return sorted(Path(f.path).name for f in lint_paths([root]).findings)


@pytest.mark.parametrize(
    "app",
    [
        "from routes.chat import router as chat_router\n",
        "from routes.chat import router as chat_router\n# app.include_router(chat_router)\n",
        "from routes.chat import (  # later\n    router as chat_router,\n)\n",
        "from routes import chat\n",
        "import routes.chat\n",
    ],
)
def test_a_router_that_is_imported_and_not_included(tmp_path: Path, app: str) -> None:
    assert found(tmp_path, app + INCLUDES) == ["rag.py"]


@pytest.mark.parametrize(
    "app",
    [
        "from routes.chat import router as chat_router\napp.include_router(chat_router)\n",
        "from routes.chat import router as chat_router\nfor each in (chat_router,):\n    app.include_router(each)\n",
        "from routes import chat\napp.include_router(chat.router)\n",
        "import routes.chat as talk\napp.include_router(talk.router)\n",
        "import routes.chat\napp.include_router(routes.chat.router)\n",
        "from routes.chat import *\napp.include_router(router)\n",
        "from routes.chat import router as chat_router\napp.include_router(globals()['chat' + '_router'])\n",
    ],
)
def test_a_router_that_may_be_included(tmp_path: Path, app: str) -> None:
    assert found(tmp_path, app + INCLUDES) == ["chat.py", "rag.py"]


def test_a_router_that_another_module_passes_on(tmp_path: Path) -> None:
    forgets = f"from routes.chat import router as chat_router\n{INCLUDES}"
    uses = "from app import app, chat_router\napp.include_router(chat_router)\n"
    assert found(tmp_path / "module", forgets, {"serve.py": uses}) == ["chat.py", "rag.py"]


def test_a_router_that_a_package_passes_on(tmp_path: Path) -> None:
    package = "from .chat import router as chat_router\n__all__ = ['chat_router']\n"
    nobody = "import routes\n"
    assert found(tmp_path / "nobody", nobody + INCLUDES, {"routes/__init__.py": package}) == ["rag.py"]
    module = "import routes\napp.include_router(routes.chat_router)\n"
    assert found(tmp_path / "module", module + INCLUDES, {"routes/__init__.py": package}) == ["chat.py", "rag.py"]
    name = "from routes import chat_router\napp.include_router(chat_router)\n"
    assert found(tmp_path / "name", name + INCLUDES, {"routes/__init__.py": package}) == ["chat.py", "rag.py"]
    listed = "import routes\nfor each in dir(routes):\n    app.include_router(getattr(routes, each))\n"
    assert found(tmp_path / "listed", listed + INCLUDES, {"routes/__init__.py": package}) == ["chat.py", "rag.py"]


def test_an_application_that_includes_none_may_have_another_way(tmp_path: Path) -> None:
    assert found(tmp_path, "from routes.chat import router as chat_router\n") == ["chat.py", "rag.py"]


def test_a_router_that_its_own_file_gives_away(tmp_path: Path) -> None:
    app = f"from routes.chat import router as chat_router\n{INCLUDES}"
    assert found(tmp_path, app, {"routes/chat.py": f"{ROUTER}\nregister(router)\n"}) == ["chat.py", "rag.py"]

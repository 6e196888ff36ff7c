"""Applications that cannot be imported serve nobody: what one of their files imports, through others, is not there."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint.run import lint_paths

MODEL = """
    from openai import AsyncOpenAI

    client = AsyncOpenAI()

    async def answer(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
"""
APP = """
    import fastapi
    {imported}

    app = fastapi.FastAPI()

    @app.post("/ask")
    async def ask(text: str):
        return await answer(text)
"""


def found(root: Path, files: dict[str, str]) -> int:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text))
    return len(lint_paths([root]).findings)


def app(*imported: str) -> str:
    return dedent(APP).format(imported="\n".join(imported))


PACKAGE = {"bot/__init__.py": "", "bot/tools/__init__.py": "", "bot/model.py": MODEL}


@pytest.mark.parametrize(
    ("tokens", "number"),
    [
        ("from bot.tools.signing import sign", 0),  # there is no such file
        ("from .tools import signing", 1),  # the package may make the name
        ("from .tools.signing import sign", 0),
        ("from bot.tools.secrets import KEY", 1),  # kept elsewhere
        ("try:\n    from bot.tools.signing import sign\nexcept ImportError:\n    sign = None", 1),
        ("from jose.tools.signing import sign", 1),  # not the project's
        ('"""\nfrom bot.tools.signing import sign\n"""', 1),
        ("", 1),
    ],
)
def test_a_module_that_is_not_there_in_a_file_that_the_application_imports(tmp_path: Path, tokens: str, number: int) -> None:
    files = PACKAGE | {
        "bot/tokens.py": f"from bot.model import answer\n{tokens}\n",
        "bot/users.py": "from bot.tokens import answer\n",
        "bot/app.py": app("from bot.users import answer"),
    }
    assert found(tmp_path, files) == number


def test_a_module_that_git_ignores_is_kept_elsewhere(tmp_path: Path) -> None:
    files = PACKAGE | {"bot/app.py": app("from bot.model import answer", "from bot.tools.signing import sign")}
    assert found(tmp_path, files) == 0
    assert found(tmp_path, files | {".gitignore": "*.signing\n"}) == 0
    assert found(tmp_path, files | {".gitignore": "*.db\ntools/signing.py\n"}) == 1


def test_a_folder_with_the_name_of_a_package_from_outside_is_not_that_package(tmp_path: Path) -> None:
    files = PACKAGE | {
        "bot/azure/__init__.py": "",
        "bot/azure/tokens.py": "from azure.identity import DefaultAzureCredential\n",
        "bot/app.py": app("from bot.model import answer", "from bot.azure.tokens import DefaultAzureCredential"),
    }
    assert found(tmp_path, files) == 1


def test_a_package_inside_another_is_not_the_one_of_that_name_from_outside(tmp_path: Path) -> None:
    files = PACKAGE | {
        "bot/mcp/__init__.py": "from .server import serve\n",
        "bot/mcp/server.py": "from bot.model import answer\nfrom mcp.types import Tool\n\nserve = Tool\n",
        "main.py": app("from bot.mcp import serve", "from bot.model import answer"),
    }
    assert found(tmp_path, files) == 1


def test_a_router_whose_application_imports_another_one_that_cannot_be(tmp_path: Path) -> None:
    router = """
        from fastapi import APIRouter
        from bot.model import answer

        router = APIRouter()

        @router.post("/ask")
        async def ask(text: str):
            return await answer(text)
    """
    files = PACKAGE | {
        "bot/routes/__init__.py": "from . import ask\nfrom . import users\n",
        "bot/routes/ask.py": router,
        "bot/routes/users.py": "from bot.model import Nobody\n",
        "bot/main.py": """
            import fastapi
            from bot.routes import ask

            app = fastapi.FastAPI()
            app.include_router(ask.router)
        """,
    }
    assert found(tmp_path / "broken", files) == 0
    assert found(tmp_path / "whole", files | {"bot/routes/users.py": "from bot.model import answer\n"}) == 1


@pytest.mark.parametrize(("knows", "number"), [(True, 1), (False, 2)])  # the file itself is reported as well
def test_a_file_that_is_no_python_in_what_the_application_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool, number: int
) -> None:
    monkeypatch.setattr("hangup.lint.broken.KNOWS_SYNTAX", knows)
    summary = """
        from bot.model import answer

        async def summarize(text="", *, user, limit):
            return await answer(text if else user)
    """
    files = PACKAGE | {
        "bot/summary.py": summary,
        "bot/app.py": app("from bot.model import answer", "from bot.summary import summarize"),
    }
    assert found(tmp_path, files) == number


SCRIPTS = {"model.py": MODEL, "storage.py": "class Storage: pass\n", "web/chat.py": MODEL}


@pytest.mark.parametrize(
    ("imported", "files", "number"),
    [
        (["from chat import answer", "from storage import Storage"], {}, 0),  # it is a folder above
        (["from chat import answer", "from storage import Storage"], {"web/storage.py": "class Storage: pass\n"}, 1),
        (["from chat import answer, Nobody"], {}, 0),
        (["import sys", "sys.path.append('..')", "from chat import answer", "from storage import Storage"], {}, 1),
        (["from chat import answer", "from storage import Storage"], {"Dockerfile": "ENV PYTHONPATH=/app:/app/web\n"}, 1),
        (["from chat import answer", "from storage import Storage"], {"web/__init__.py": ""}, 1),
        (["from chat import answer", "from storage import Storage"], {"run.py": "from web.app import app\n"}, 1),
        (["from chat import answer", "from storage3 import Storage"], {}, 1),  # a package from outside
    ],
)
def test_scripts_find_what_is_in_their_own_folder(
    tmp_path: Path, imported: list[str], files: dict[str, str], number: int
) -> None:
    assert found(tmp_path, SCRIPTS | {"web/app.py": app(*imported)} | files) == number

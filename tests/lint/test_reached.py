"""What no request reaches: routers that nothing includes, branches that a caller rules out, settings that are off."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import RULES, lint_source
from hangup.lint.run import lint_paths

MODEL = """
    from openai import AsyncOpenAI

    client = AsyncOpenAI()

    class Answering:
        async def execute(self, text):
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def respond(text):
        return await Answering().execute(text)
"""
ROUTER = """
    from fastapi import APIRouter
    from model import respond

    router = APIRouter()

    @router.post("/ask")
    async def ask(text: str):
        return await respond(text)
"""
APP = "from fastapi import FastAPI\nimport used\napp = FastAPI()\napp.include_router(used.router)\n"


def found(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in {"model.py": MODEL, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text))
    return [Path(f.path).name for f in lint_paths([root]).findings]


def codes(source: str) -> list[str]:
    return [finding.code for finding in lint_source(dedent(source), codes=list(RULES))]


def test_a_router_that_no_application_includes_serves_nobody(tmp_path: Path) -> None:
    files = {"used.py": ROUTER, "other.py": ROUTER, "used.backup.py": ROUTER, "app.py": APP}
    assert found(tmp_path, files) == ["used.py"]


def test_a_package_at_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(tmp_path, {"used.py": ROUTER, "app.py": APP, "__init__.py": ""})
    monkeypatch.chdir(tmp_path)
    assert [f.path for f in lint_paths([Path()]).findings] == ["used.py"]


def test_without_an_application_that_includes_routers_all_may_be_served(tmp_path: Path) -> None:
    assert found(tmp_path, {"used.py": ROUTER, "other.py": ROUTER}) == ["other.py", "used.py"]


def test_routers_that_are_loaded_by_their_names(tmp_path: Path) -> None:
    loader = """
        from importlib import import_module
        import used

        def include(app):
            for name in ("other",):
                app.include_router(import_module(name).router)
            # "third" is gone
    """
    files = {"used.py": ROUTER, "other.py": ROUTER, "third.py": ROUTER, "loader.py": loader, "app.py": APP + "import loader\n"}
    assert found(tmp_path, files) == ["other.py", "used.py"]
    (tmp_path / "loader.py").write_text(dedent(loader).replace('("other",)', 'Path().glob("*.py")'))
    assert len(lint_paths([tmp_path]).findings) == 3, "modules that are looked for may be any"


GUARDED = """
    from fastapi import FastAPI
    from openai import AsyncOpenAI

    app = FastAPI()
    client = AsyncOpenAI()

    async def complete(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def early(text, summarize=True):
        if not summarize:
            return text
        return await complete(text)

    async def inside(text, provider=None, other=None):
        if text and provider is not None:
            return await complete(text)
        if other:
            return await complete(other)
        return text

    async def passing(text, *, provider=None):
        return await inside(text, provider)

    @app.post("/ask")
    async def ask(text: str, more: str):
        return await {call}
"""


@pytest.mark.parametrize("call", ["early(text, False)", "early(text, summarize=False)", "inside(text)", "passing(text)"])
def test_a_branch_that_the_caller_rules_out(call: str) -> None:
    assert codes(GUARDED.format(call=call)) == []


@pytest.mark.parametrize(
    "call", ["early(text)", "early(text, more)", "inside(text, other=more)", "passing(text, provider=more)", "inside(**more)"]
)
def test_a_branch_that_the_caller_may_take(call: str) -> None:
    assert codes(GUARDED.format(call=call)) == ["HU004"]


SWITCHED = """
    from model import respond
    from settings import settings

    async def search(text):
        if settings.rewrite:
            text = await respond(text)
        return text
"""


@pytest.mark.parametrize(("default", "reported"), [("False", []), ("True", ["app.py"])])
def test_a_setting_that_is_off_by_default(tmp_path: Path, default: str, reported: list[str]) -> None:
    files = {
        "settings.py": f"class Settings:\n    rewrite: bool = {default}\n\nsettings = Settings()\n",
        "search.py": SWITCHED,
        "app.py": "from fastapi import FastAPI\nfrom search import search\napp = FastAPI()\n\n"
        "@app.post('/search')\nasync def ask(text: str):\n    return await search(text)\n",
    }
    assert found(tmp_path, files) == reported


def test_one_of_many_branches_says_little_of_the_others() -> None:
    branches = "\n".join(f"    if intent.name == 'i{i}':\n        return str(intent.value) + '{i}'" for i in range(9))
    essay = "    if intent.name == 'essay':\n        return await complete(intent.value)\n"
    text = f"{dedent(GUARDED.format(call='dispatch(text)'))}\nasync def dispatch(intent):\n{branches}\n{essay}"
    assert codes(text) == []
    assert codes(text.replace("if intent.name == 'essay'", "if intent.value")) == ["HU004"]


def test_the_annotation_tells_which_of_several_classes_is_called(tmp_path: Path) -> None:
    app = """
        from typing import Annotated
        from fastapi import Depends, FastAPI, Request
        from cases.deleting import Deleting
        from model import Answering

        app = FastAPI()

        def deleting(request: Request) -> Deleting:
            return request.app.state.deleting

        @app.post("/delete")
        async def delete(text: str, answering: Annotated[Deleting, Depends(deleting)]):
            return await answering.execute(text)
    """
    case = "class Deleting:\n    async def execute(self, text):\n        return len(text)\n"
    files = {"cases/__init__.py": "", "cases/deleting.py": case, "app.py": app}
    assert found(tmp_path, files) == []


def test_a_class_that_lacks_the_method_is_not_another_class() -> None:
    source = """
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI()

        class Core:
            def write_persona(self, text):
                return client.chat.completions.create(model="m", messages=[text], max_tokens=500)

        class Facade:
            pass

        @app.post("/ask")
        async def ask(text: str):
            return {made}().write_persona(text)
    """
    assert codes(source.replace("{made}", "Facade")) == []
    assert codes(source.replace("{made}", "Core")) == ["HU005"]


def test_asyncio_run_raises_where_a_loop_runs() -> None:
    source = """
        import asyncio
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI()

        async def complete(text):
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

        def digest(text):
            return asyncio.run(complete(text))

        @app.post("/ask")
        {kind} ask(text: str):
            return digest(text)
    """
    assert codes(source.replace("{kind}", "async def")) == []
    assert codes(source.replace("{kind}", "def")) == ["HU004"]


def test_a_file_of_the_same_name_in_another_folder_is_not_imported(tmp_path: Path) -> None:
    router = "from fastapi import APIRouter\nfrom {folder}.helpers.mail import send\n" + dedent(ROUTER).partition("\n")[2]
    files = {
        f"{folder}/{name}": text
        for folder in ("news", "sports")
        for name, text in {
            "__init__.py": "from .router import router\n",
            "router.py": router.format(folder=folder),
            "helpers/__init__.py": "",
            "helpers/mail.py": "def send(text): ...\n",
        }.items()
    }
    app = "from fastapi import FastAPI\nimport {}\napp = FastAPI()\napp.include_router(news.router)\n"
    assert found(tmp_path, {**files, "app.py": app.format("news")}) == ["router.py"]
    assert found(tmp_path, {**files, "app.py": app.format("news, sports")}) == ["router.py", "router.py"]


@pytest.mark.parametrize("path", ["/index/{source}", "/index-all"])
def test_an_operator_who_indexes_waits_for_no_answer(path: str) -> None:
    source = """
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI()

        @app.post("PATH")
        async def NAME(source: str):
            return await client.chat.completions.create(model="m", messages=[source], max_tokens=500)
    """.replace("PATH", path)
    assert codes(source.replace("NAME", "index_datasource")) == []
    assert codes(source.replace("NAME", "index").replace(path, "/")) == ["HU004"]

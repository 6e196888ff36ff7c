"""The second pass: a handler in one module calls inference in another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hangup.lint import workers
from hangup.lint.run import lint_paths
from hangup.lint.settings import LintSettings, SettingsTree

FILES = {
    "app/__init__.py": "",
    "app/clients.py": """
        from openai import AsyncOpenAI

        client = AsyncOpenAI(timeout=60)
    """,
    "app/services/__init__.py": "from .rag import RagService\n",
    "app/services/base.py": """
        class Service:
            async def answer(self, question):
                return await self.ask(question)

            async def ask(self, question):
                raise NotImplementedError
    """,
    "app/services/rag.py": """
        from app.clients import client
        from .base import Service

        class RagService(Service):
            async def ask(self, question):
                return await client.chat.completions.create(model="m", messages=[question], max_tokens=500)
    """,
    "app/deps.py": """
        from functools import lru_cache
        from .services import RagService

        @lru_cache
        def get_rag() -> RagService:
            return RagService()
    """,
    "app/routes.py": """
        from typing import Annotated
        from fastapi import APIRouter, Depends
        from app.deps import get_rag
        from app.services import RagService

        router = APIRouter()

        @router.post("/ask")
        async def ask(question: str, rag: Annotated[RagService, Depends(get_rag)]):
            return await rag.answer(question)

        @router.post("/again")
        async def again(question: str, helper=Depends(get_rag)):
            return await helper.answer(question)
    """,
    "app/other.py": """
        def unrelated():
            return 1
    """,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*paths: str, cache: Path | None = None) -> list[str]:
    report = lint_paths([Path(p) for p in paths or ["."]], SettingsTree(), cache)
    return [f"{f.path}:{f.line} {f.code}" for f in report.findings]


def test_a_handler_is_connected_with_the_inference_of_another_module(project: Path) -> None:
    report = lint_paths([Path()])
    assert [(f.path, f.line, f.code) for f in report.findings] == [
        ("app/routes.py", 11, "HU004"),
        ("app/routes.py", 15, "HU004"),
    ]
    assert "`client.chat.completions.create`, app/services/rag.py:7" in report.findings[0].message


def test_functions_that_are_imported_under_another_name(project: Path) -> None:
    (project / "app/ask.py").write_text("async def ask(llm, q):\n    return await llm.ainvoke(q)\n")
    (project / "app/routes.py").write_text(
        dedent("""
            from fastapi import APIRouter
            from app.ask import ask as _ask

            router = APIRouter()

            @router.post("/ask")
            async def ask(question: str):
                return await _ask(None, question)
        """)
    )
    assert found() == ["app/routes.py:9 HU004"]


def test_a_middleware_of_another_application_hides_nothing(project: Path) -> None:
    (project / "app/poll.py").write_text(
        "import fastapi\nasync def wait(request):\n    return await request.is_disconnected()\n"
    )
    middleware = "from starlette.middleware.base import BaseHTTPMiddleware\nclass Timing(BaseHTTPMiddleware): ...\n"
    (project / "app/timing.py").write_text(middleware)
    (project / "second").mkdir()
    (project / "second/timing.py").write_text(middleware)
    report = lint_paths([Path()], SettingsTree(LintSettings(select=("HU010",))))
    assert [f.path for f in report.findings] == ["app/timing.py"]


def test_nothing_is_imported(project: Path) -> None:
    (project / "app/clients.py").write_text("raise SystemExit('imported')\n" + dedent(FILES["app/clients.py"]))
    assert len(found()) == 2
    assert "app" not in sys.modules


def test_files_that_cannot_matter_are_not_parsed(project: Path) -> None:
    report = lint_paths([Path()])
    assert report.files == 8
    assert report.parsed == 5, "not app/__init__.py, which imports nothing, nor app/other.py, nor a client that nobody asks for"


def test_a_named_file_is_judged_with_its_project(project: Path) -> None:
    assert found("app/routes.py") == ["app/routes.py:11 HU004", "app/routes.py:15 HU004"]
    assert found("app/services/rag.py") == []


def test_the_cache_knows_what_did_not_change(project: Path) -> None:
    cache = project / ".hangup_cache"
    first = lint_paths([Path()], SettingsTree(), cache)
    again = lint_paths([Path()], SettingsTree(), cache)
    assert (first.cached, again.cached) == (0, 8)
    assert again.findings == first.findings != []
    rag = project / "app/services/rag.py"
    rag.write_text(rag.read_text().replace("await client.chat.completions.create", "len"))
    changed = lint_paths([Path()], SettingsTree(), cache)
    assert changed.cached == 7 and changed.findings == []


def test_a_broken_cache_is_no_cache(project: Path) -> None:
    cache = project / ".hangup_cache"
    lint_paths([Path()], SettingsTree(), cache)
    (file,) = cache.glob("*.json")
    for content in ("{", "[]", '{"version": "x", "files": {}}', file.read_text().replace('"files":{', '"files":{"a":3,')):
        file.write_text(content)
        report = lint_paths([Path()], SettingsTree(), cache)
        assert report.cached == 0 and len(report.findings) == 2


def test_a_cache_that_cannot_be_written_is_no_error(project: Path) -> None:
    blocked = project / "blocked"
    blocked.write_text("a file, not a folder")
    assert len(found(cache=blocked)) == 2


def test_a_call_is_read_again_once_another_file_defines_what_it_calls(project: Path, tmp_path: Path) -> None:
    """Of a call that leads nowhere, what must be given for it to be made is not noted."""
    cache = tmp_path / "cache"
    (project / "app/deep.py").write_text(
        dedent("""
            from app.services.rag import RagService

            async def shorten(llm, text):
                return await llm.ainvoke(text)

            async def look(question, deep=False):
                rag = RagService()
                if deep:
                    return await rag.respond(question)
                return ""
        """)
    )
    (project / "app/routes.py").write_text(
        dedent("""
            from fastapi import APIRouter
            from app.deep import look

            router = APIRouter()

            @router.post("/ask")
            async def ask(question: str):
                return await look(question)

            @router.post("/deep")
            async def deep(question: str):
                return await look(question, deep=True)
        """)
    )
    assert found(cache=cache) == []
    service = project / "app/services/rag.py"
    service.write_text(service.read_text().replace("def ask", "def respond"))
    assert found() == found(cache=cache) == ["app/routes.py:13 HU004"]


def test_the_same_in_several_processes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = found()
    monkeypatch.setattr(workers, "PARALLEL_FROM_FILES", 1)
    monkeypatch.setattr(workers, "MORE_FROM_FILES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    parsed: list[list[str]] = []
    start = workers.Workers.map

    def noting(self: workers.Workers, function: Any, paths: list[str], *same: Any) -> Any:
        if same:
            parsed.append(paths)
        return start(self, function, paths, *same)

    monkeypatch.setattr(workers.Workers, "map", noting)
    assert found() == alone != []
    assert parsed[0] == ["app/services/rag.py"], "what may hold inference"
    assert ["app/services/base.py"] in parsed[1:], "who may call it"


def test_modules_that_import_each_other(project: Path) -> None:
    (project / "app/clients.py").write_text("from app.services.rag import RagService\n" + dedent(FILES["app/clients.py"]))
    assert len(found()) == 2


def test_two_applications_in_one_tree_are_kept_apart(project: Path) -> None:
    """Both have app/services/rag.py, but only one of them runs inference."""
    shutil.copytree(project / "app", project / "second/app")
    other = project / "second/app/services/rag.py"
    other.write_text(other.read_text().replace("await client.chat.completions.create", "len"))
    assert found() == ["app/routes.py:11 HU004", "app/routes.py:15 HU004"]


def test_settings_are_those_of_each_file(project: Path) -> None:
    (project / "app/pyproject.toml").write_text('[tool.hangup.lint]\nignore = ["HU004"]\n')
    assert found() == []
    (project / "app/pyproject.toml").write_text("[tool.other]\nx = 1\n")
    (project / "pyproject.toml").write_text('[tool.hangup.lint]\nselect = ["HU001"]\n')
    assert found() == [], "a file without settings does not hide those of the root"
    assert SettingsTree(LintSettings()).of(project).codes() != SettingsTree().of(project).codes()


def test_settings_are_read_once_for_all_folders_below_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    read_text = Path.read_text

    def noting(path: Path) -> str:
        read.append(path)
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", noting)
    tree = SettingsTree()
    settings = [tree.of(project / name) for name in (".", "app", "app/services")]
    assert [path.name for path in read] == ["pyproject.toml"] and settings[0] == settings[1] == settings[2]
    assert settings[0].root == project.resolve() and settings[0].in_project
    (project / "app/services/.git").mkdir()
    assert SettingsTree().of(project / "app/services").root == (project / "app/services").resolve()
    (project / "linked").symlink_to(project / "app/services")
    assert SettingsTree().of(project / "linked").root == (project / "app/services").resolve()


def test_the_same_from_the_command_line(project: Path) -> None:
    command = [str(Path(sys.executable).with_name("hangup")), "lint", "app/routes.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1 and done.stdout.count("HU004") == 2
    assert (project / ".hangup_cache" / ".gitignore").read_text() == "*\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text))


INTERFACE = """
    from abc import ABC, abstractmethod

    class Answers(ABC):
        @abstractmethod
        async def reply(self, text): ...
"""
COMPUTES = """
    from openai import AsyncOpenAI
    from {module} import Answers

    client = AsyncOpenAI()

    class Computed({base}):
        async def reply(self, text):
            return await client.chat.completions.create(model="m", messages=[], max_tokens=500)
"""


def test_a_dependency_tells_what_a_parameter_is(project: Path) -> None:
    shutil.rmtree(project / "app")
    route = """
        from fastapi import Depends, FastAPI
        from own.provide import get_answers
        from own.answers import Answers

        app = FastAPI()

        @app.post("/answer")
        async def answer(text: str, service: Answers = Depends(get_answers)):
            return await service.reply(text)
    """
    provide = """
        from typing import cast
        from own.answers import Answers
        from own.computed import Computed
        from own.fixed import Fixed

        def get_answers() -> Answers:
            service = {made}()
            return cast(Answers, service)
    """
    fixed = "class Fixed:\n    async def reply(self, text):\n        return 'yes'\n"
    files = {"own/routes.py": route, "own/answers.py": INTERFACE, "own/fixed.py": fixed}
    files["own/computed.py"] = COMPUTES.format(module="own.answers", base="Answers")
    write(project, files | {"own/provide.py": provide.format(made="Computed")})
    assert found() == ["own/routes.py:10 HU004"]
    write(project, {"own/provide.py": provide.format(made="Fixed")})
    assert found() == []


def test_services_of_a_monorepo_are_applications_of_their_own(project: Path) -> None:
    shutil.rmtree(project / "app")
    route = """
        from fastapi import FastAPI
        from {service}.answers import Answers

        app = FastAPI()

        @app.post("/answer")
        async def answer(text: str, checker: Answers):
            return await checker.reply(text)
    """
    for service in ("one", "two"):
        write(project, {f"services/{service}/{service}/routes.py": route.format(service=service)})
        write(project, {f"services/{service}/{service}/answers.py": INTERFACE})
    computed = COMPUTES.format(module="two.answers", base="object")
    write(project, {"services/two/two/computed.py": computed})
    assert found() == ["services/two/two/routes.py:9 HU004"]


def test_an_agent_that_another_module_makes(project: Path) -> None:
    shutil.rmtree(project / "app")
    agent = "from pydantic_ai import Agent\n\nhelper = Agent('openai:gpt-4o')\n"
    route = """
        from fastapi import FastAPI
        from own.agents import helper

        app = FastAPI()

        @app.post("/answer")
        async def answer(text: str):
            return (await helper.run(text)).output
    """
    write(project, {"own/agents.py": agent, "own/routes.py": route})
    assert found() == ["own/routes.py:9 HU004"]
    write(project, {"own/agents.py": agent.replace("pydantic_ai", "own.others"), "own/others.py": "class Agent:\n    pass\n"})
    assert found() == []


@pytest.mark.parametrize(
    "line", ["from .rag import rag, Rag", "from .rag import (\n    Rag,\n    rag,\n)", "from services.rag import rag"]
)
def test_a_package_may_hide_a_module_behind_an_object_of_the_same_name(tmp_path: Path, line: str) -> None:
    files = {
        "services/__init__.py": line + "\n",
        "services/rag.py": """
            from openai import OpenAI

            class Rag:
                def answer(self, text):
                    return OpenAI().chat.completions.create(model="m", messages=[text], max_tokens=500)

            rag = Rag()
        """,
        "app.py": """
            from fastapi import FastAPI
            from services import rag

            app = FastAPI()

            @app.post("/ask")
            async def ask(text: str):
                return rag.answer(text)
        """,
    }
    write(tmp_path, files)
    assert [finding.code for finding in lint_paths([tmp_path]).findings] == ["HU005"]
    (tmp_path / "services" / "__init__.py").write_text("")
    assert lint_paths([tmp_path]).findings == []


def test_a_name_from_a_module_that_its_package_hides(tmp_path: Path) -> None:
    """`from services.rag import answer` finds the module, whatever the package calls `rag`."""
    files = {
        "services/__init__.py": "from .rag import rag\n",
        "services/rag.py": """
            from openai import OpenAI

            class Rag:
                pass

            def answer(text):
                return OpenAI().chat.completions.create(model="m", messages=[text], max_tokens=500)

            rag = Rag()
        """,
        "app.py": """
            from fastapi import FastAPI
            from services.rag import answer

            app = FastAPI()

            @app.post("/ask")
            async def ask(text: str):
                return answer(text)
        """,
    }
    write(tmp_path, files)
    assert [finding.code for finding in lint_paths([tmp_path]).findings] == ["HU005"]


def test_a_package_passes_on_what_its_modules_import_from_it(tmp_path: Path) -> None:
    """`from . import Llm` leads to the package, and by it to the module that has it."""
    files = {
        "services/__init__.py": "from .conversation import Conversation\nfrom .model import Llm\n",
        "services/model.py": """
            from openai import AsyncOpenAI

            class Llm:
                async def respond(self, text):
                    return await AsyncOpenAI().responses.create(model="m", input=text)
        """,
        "services/conversation.py": """
            from . import Llm

            class Conversation:
                def __init__(self, llm: Llm):
                    self.llm = llm

                async def say(self, text):
                    return await self.llm.respond(text)
        """,
        "app.py": """
            from fastapi import FastAPI
            from services import Conversation, Llm

            app = FastAPI()
            conversation = Conversation(Llm())

            @app.post("/chat")
            async def chat(text: str):
                return await conversation.say(text)
        """,
    }
    write(tmp_path, files)
    assert [finding.code for finding in lint_paths([tmp_path]).findings] == ["HU004"]

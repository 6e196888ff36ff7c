"""Applications that cannot start, and code that raises before it comes to the model, leak nothing."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

AGENT = """
    from openai import AsyncOpenAI

    client = AsyncOpenAI()

    class Agent:
        def __init__(self, llm, name="agent", *, limit=5):
            self.llm = llm

        async def ask(self, text):
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
"""
APP = """
    import fastapi
    {imported}

    app = fastapi.FastAPI()
    {made}

    @app.post("/ask")
    async def ask(text: str):
        return await agent.ask(text)
"""


def found(root: Path, imported: str, made: str, agent: str = AGENT) -> int:
    (root / "bot").mkdir()
    (root / "bot" / "__init__.py").write_text("")
    (root / "bot" / "agent.py").write_text(dedent(agent))
    (root / "bot" / "app.py").write_text(dedent(APP).format(imported=imported, made=made))
    return len(lint_paths([root]).findings)


@pytest.mark.parametrize(
    ("made", "number"),
    [
        ("agent = Agent()", 0),
        ("agent = Agent(name='a')", 0),
        ("agent = Agent(MODEL)", 1),
        ("agent = Agent(llm=MODEL)", 1),
        ("agent = Agent(*GIVEN)", 1),
        ("agent = Agent(**GIVEN)", 1),
        ("try:\n    agent = Agent()\nexcept TypeError:\n    agent = Agent(MODEL)", 1),
    ],
)
def test_a_constructor_that_lacks_an_argument(tmp_path: Path, made: str, number: int) -> None:
    assert found(tmp_path, "from .agent import Agent", made) == number


def test_a_class_of_another_package_is_not_judged_by_one_of_the_project(tmp_path: Path) -> None:
    imported = "from .agent import Agent as Own\nfrom agent import Agent"
    assert found(tmp_path, imported, "agent = Own(MODEL)\nother = Agent()") == 1


@pytest.mark.parametrize(
    ("imported", "number"),
    [
        ("from .agent import Agent, Missing", 0),
        ("from .agent import (\n    Agent,\n    Missing as Other,\n)", 0),
        ("from .agent import Agent", 1),
        ("from .agent import Agent, client", 1),
        ("from .agent import Agent\ntry:\n    from .agent import Missing\nexcept ImportError:\n    pass", 1),
        ("from .agent import Agent\nfrom .elsewhere import Missing", 0),
        ("from .agent import Agent\nfrom .secrets import Missing", 1),
        ('"""\nfrom .agent import Missing\n"""\nfrom .agent import Agent', 1),
        ("from .agent import Agent\nfrom . import agent as module", 1),
    ],
)
def test_a_name_that_the_module_does_not_have(tmp_path: Path, imported: str, number: int) -> None:
    assert found(tmp_path, imported, "agent = Agent(MODEL)") == number


def test_a_module_that_makes_names_when_it_runs_may_have_any(tmp_path: Path) -> None:
    agent = dedent(AGENT) + "\nfrom parts import *\n"
    assert found(tmp_path, "from .agent import Agent, Missing", "agent = Agent(MODEL)", agent) == 1


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("results = search('query' % text)", 0),
        ("results = search('query %s' % text)", 1),
        ("results = search('query' % {})", 1),
        ("if text: search('query' % text)", 1),
    ],
)
def test_a_text_with_no_place_for_what_is_put_in(line: str, number: int) -> None:
    source = f"""
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI()

        @app.post("/ask")
        async def ask(text: str):
            {line}
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
    """
    assert len(lint_source(dedent(source))) == number


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("summarize(text)", 0),
        ("summarize(prompt=text)", 0),
        ("summarize(text, text)", 1),
        ("summarize(text, document=text)", 1),
        ("summarize(*text)", 1),
        ("summarize(**text)", 1),
        ("wrapped(text)", 1),
        ("Service().summarize(text)", 0),
        ("Service().summarize(text, text)", 1),
    ],
)
def test_a_call_that_lacks_an_argument_raises(call: str, number: int) -> None:
    source = f"""
    import fastapi
    from openai import OpenAI

    app = fastapi.FastAPI()
    client = OpenAI()

    def summarize(text, document, limit=5):
        return client.chat.completions.create(model="m", messages=[text])

    @with_document
    def wrapped(text, document):
        return client.chat.completions.create(model="m", messages=[text])

    class Service:
        def summarize(self, text, document):
            return client.chat.completions.create(model="m", messages=[text])

    @app.post("/summarize")
    def post(text: str):
        return {call}
    """
    assert len(lint_source(dedent(source))) == number


@pytest.mark.parametrize(
    ("package", "number"),
    [
        ("from .engine import Engine", 1),
        ("from .engine import OldEngine", 0),
        ("from bot.engine import OldEngine", 0),
        ("try:\n    from .engine import OldEngine\nexcept ImportError:\n    OldEngine = None", 1),
    ],
)
def test_a_package_that_cannot_be_imported_serves_nobody(tmp_path: Path, package: str, number: int) -> None:
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / "__init__.py").write_text(package)
    (tmp_path / "bot" / "engine.py").write_text("class Engine:\n    limit = 5\n")
    (tmp_path / "bot" / "agent.py").write_text(dedent(AGENT))
    made = dedent(APP).format(imported="from bot.agent import Agent", made="agent = Agent('m')")
    (tmp_path / "app.py").write_text(made)
    assert len(lint_paths([tmp_path]).findings) == number

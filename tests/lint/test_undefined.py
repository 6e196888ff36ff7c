"""A name that is defined nowhere raises where it is evaluated: what comes after it is not run."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

pytestmark = pytest.mark.undefined_names

HANDLER = """
import contextlib
from fastapi import FastAPI
from openai import AsyncOpenAI
{top}

app = FastAPI()
client = AsyncOpenAI()

async def complete(text):
    return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

@app.post("/ask")
async def ask(text: str, names: list[str]):
{body}
"""


def findings(body: str, top: str = "") -> int:
    return len(lint_source(HANDLER.format(top=top, body=indent(dedent(body).strip(), "    "))))


@pytest.mark.parametrize(
    "body",
    [
        "settings.check()\nreturn await complete(text)",
        "return await complete(settings.prefix + text)",
        "return await complete(f'{settings.prefix}: {text}')",
        "return await complete(text, **options)",
        "if text:\n    text = clean(text)\n    return await complete(text)\nreturn ''",
        "if text:\n    text = clean(text)\nelse:\n    text = greet()\nreturn await complete(text)",
        "for name in names:\n    clean(name)\n    return await complete(name)",
        "for name in wanted:\n    pass\nreturn await complete(text)",
        "with open_span():\n    return await complete(text)",
        "try:\n    clean(text)\n    return await complete(text)\nexcept Exception:\n    return ''",
        "try:\n    clean(text)\nexcept ValueError:\n    pass\nreturn await complete(text)",
        "try:\n    clean(text)\nexcept Exception as error:\n    raise RuntimeError from error\nreturn await complete(text)",
        "try:\n    pass\nfinally:\n    clean(text)\nreturn await complete(text)",
        "ready = settings.on and text\nreturn await complete(text)",
        "found = [name for name in wanted]\nreturn await complete(text)",
        "return [await complete(clean(name)) for name in names]",
        "def inner():\n    clean = 1\nclean(text)\nreturn await complete(text)",
        "match kind:\n    case 'a':\n        return await complete(text)",
    ],
)
def test_what_comes_after_a_name_that_is_defined_nowhere_is_not_run(body: str) -> None:
    assert findings(body) == 0
    assert findings(body, "settings = clean = options = greet = wanted = open_span = kind = make()\ndef make(): pass") == 1


@pytest.mark.parametrize(
    "body",
    [
        "answer = await complete(text)\nlog_answer(answer)\nreturn answer",
        "return [await complete(text), settings.prefix]",
        "return {'answer': await complete(text), settings.key: 1}",
        "if text:\n    clean(text)\nreturn await complete(text)",
        "for name in names:\n    clean(name)\nreturn await complete(text)",
        "try:\n    clean(text)\nexcept NameError:\n    pass\nreturn await complete(text)",
        "try:\n    clean(text)\nexcept (KeyError, Exception):\n    text = ''\nreturn await complete(text)",
        "try:\n    clean(text)\nfinally:\n    return await complete(text)",
        "with contextlib.suppress(Exception):\n    clean(text)\nreturn await complete(text)",
        "ready = text and settings.on\nreturn await complete(text)",
        "ready = settings.on if text else 1\nreturn await complete(text)",
        "found = [clean(name) for name in names]\nreturn await complete(text)",
        "later = lambda: clean(text)\nreturn await complete(text)",
        "def later():\n    return clean(text)\nreturn await complete(text)",
        "from tools import clean\nclean(text)\nreturn await complete(text)",
        "global clean\nclean(text)\nreturn await complete(text)",
        "try:\n    clean = 1\nexcept ValueError as clean:\n    pass\nclean(text)\nreturn await complete(text)",
        "(first, *clean), other = text\nclean(first, other)\nreturn await complete(text)",
        "if (clean := text):\n    pass\nclean(text)\nreturn await complete(text)",
        "match text:\n    case [first, *clean]:\n        clean(first)\n        return await complete(text)",
        "match text:\n    case {'a': first, **clean}:\n        clean(first)\n        return await complete(text)",
        "import tools.clean\ntools.clean(text)\nreturn await complete(text)",
        "with tools() as (clean, other):\n    clean(other)\n    return await complete(text)",
        "clean: object\nclean(text)\nreturn await complete(text)",
        "print(__name__, __file__, _('text'))\nreturn await complete(text)",
    ],
)
def test_what_may_be_run_is_reported(body: str) -> None:
    assert findings(body, "def tools(): pass" if "tools()" in body else "") == 1


@pytest.mark.parametrize(
    "top",
    [
        "from settings import *",
        "globals()['settings'] = 1",
        "exec(open('settings.py').read())",
        "import builtins\nbuiltins.settings = 1",
        "try:\n    from config import settings\nexcept ImportError:\n    pass",
        "if True:\n    settings = None",
        "for settings in (): pass",
        "class settings: pass",
    ],
)
def test_a_module_that_may_define_the_name(top: str) -> None:
    assert findings("settings.check()\nreturn await complete(text)", top) == 1


def test_a_call_of_a_session_runs_no_text() -> None:
    assert findings("session = 1\nsession.exec(text)\nsettings.check()\nreturn await complete(text)") == 0


def test_what_a_function_around_defines_is_defined() -> None:
    body = """
    settings = text
    async def inner():
        settings.check()
        return await complete(text)
    return await inner()
    """
    assert findings(body) == 1
    assert findings(body.replace("settings = text", "")) == 0


def test_a_service_that_lacks_an_import_runs_nothing(tmp_path: Path) -> None:
    service = """
        from openai import AsyncOpenAI
        client = AsyncOpenAI()
        async def complete(text):
            try:
                model = settings.MODEL
                return await client.chat.completions.create(model=model, messages=[text], max_tokens=500)
            except Exception:
                return text[:100]
    """
    app = """
        from fastapi import FastAPI
        from .service import complete
        app = FastAPI()
        @app.post("/ask")
        async def ask(text: str):
            return await complete(text)
    """
    (tmp_path / "bot").mkdir()
    for name, text in (("__init__", ""), ("service", service), ("app", app), ("config", "settings = 1\n")):
        (tmp_path / "bot" / f"{name}.py").write_text(dedent(text))
    assert not lint_paths([tmp_path]).findings
    start = "from bot import {imported}\n{module}.settings = 1\n"
    for imported, module in (("service", "service"), ("service as module", "module")):
        (tmp_path / "start.py").write_text(start.format(imported=imported, module=module))
        assert len(lint_paths([tmp_path]).findings) == 1, "another file gives it the name"
    (tmp_path / "start.py").write_text("class Start:\n    def __init__(self):\n        self.settings = 1\n")
    assert not lint_paths([tmp_path]).findings


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("settings = get_settings()", 0),
        ("@register\nclass Settings: pass", 0),
        ("def get(limit=LIMIT): pass", 0),
        ("class Settings:\n    limit = LIMIT", 0),
        ("if __name__ == '__main__':\n    serve()", 1),
        ("try:\n    get_settings()\nexcept Exception:\n    pass", 1),
        ("settings = dict()", 1),
    ],
)
def test_an_application_whose_import_raises_serves_nobody(tmp_path: Path, line: str, number: int) -> None:
    routes = """
        from fastapi import APIRouter
        from openai import AsyncOpenAI
        router = APIRouter()
        client = AsyncOpenAI()
        @router.post("/ask")
        async def ask(text: str):
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
    """
    main = "from fastapi import FastAPI\nfrom .routes import router\n{}\napp = FastAPI()\napp.include_router(router)\n"
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / "__init__.py").write_text("")
    (tmp_path / "bot" / "routes.py").write_text(dedent(routes))
    (tmp_path / "bot" / "main.py").write_text(main.format(line))
    assert len(lint_paths([tmp_path]).findings) == number
    (tmp_path / "bot" / "other.py").write_text(main.format(""))
    assert len(lint_paths([tmp_path]).findings) == 1, "another application includes it, too"

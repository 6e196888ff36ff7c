"""Imports in a repository that holds several applications, or copies of one: each finds its own modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangup.lint.run import lint_paths
from support.lint_sources import ROUTER

MODEL = """
from openai import AsyncOpenAI

client = AsyncOpenAI()

async def ask(text):
    return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
"""
QUIET = "async def ask(text):\n    return text\n"
APP = """
from fastapi import FastAPI
{above}
app = FastAPI()

@app.post("/ask")
async def answer(text: str):
    {inside}
    return await ask(text)
"""
INCLUDES = "from fastapi import FastAPI\n{imported}\napp = FastAPI()\napp.include_router(router)\n"
IMPORT = "from services.llm import ask"
TREES = {"infra/services/__init__.py": "", "infra/services/llm.py": MODEL}


def app(above: str = "", inside: str = "pass") -> str:
    return APP.format(above=above, inside=inside)


def found(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return sorted(str(Path(f.path).relative_to(root)) for f in lint_paths([root]).findings)


@pytest.mark.parametrize(
    "written", [{"above": IMPORT}, {"inside": IMPORT}, {"inside": "from services import llm; ask = llm.ask"}]
)
def test_a_package_of_its_own_without_the_module(tmp_path: Path, written: dict[str, str]) -> None:
    """Python looks for `services` once: another application's is not asked."""
    assert found(tmp_path, TREES | {"shop/main.py": app(**written), "shop/services/__init__.py": ""}) == []


@pytest.mark.parametrize(
    "files",
    [
        {"shop/main.py": app(IMPORT)},  # infra may be one of its roots
        {"shop/main.py": app(IMPORT), "shop/services/cart.py": ""},  # without __init__.py, a package may be in several places
        {"shop/main.py": app(IMPORT), "shop/services/__init__.py": "from infra_services import *"},
        {
            "shop/main.py": app(IMPORT),
            "shop/services/__init__.py": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)",
        },
        {
            "shop/main.py": app("import sys\nsys.path.insert(0, '../infra')\n" + IMPORT),
            "shop/services/__init__.py": "",
        },
        {
            "shop/__init__.py": "",  # a package itself: its parent is the root
            "shop/main.py": app(IMPORT),
            "shop/services/__init__.py": "",
        },
        {
            "shop/main.py": app(f"try:\n    {IMPORT}\nexcept ImportError:\n    from infra.services.llm import ask"),
            "infra/__init__.py": "",
        },
    ],
)
def test_another_applications_module_may_be_meant(tmp_path: Path, files: dict[str, str]) -> None:
    assert found(tmp_path, TREES | files) == ["shop/main.py"]


def test_a_package_is_a_root_if_the_file_imports_others_from_there(tmp_path: Path) -> None:
    files = {
        "shop/src/__init__.py": "",
        "shop/src/services/__init__.py": "",
        "shop/src/app/__init__.py": "",
        "shop/src/app/tools.py": "limit = 5",
    }
    here = "shop/src/app/main.py"
    assert found(tmp_path, TREES | files | {here: app(IMPORT)}) == [here]
    assert found(tmp_path, TREES | files | {here: app("from app.tools import limit\n" + IMPORT)}) == []


@pytest.mark.parametrize(("own", "other", "number"), [(QUIET, MODEL, 0), (MODEL, QUIET, 1)])
def test_of_two_copies_the_own_one_is_meant(tmp_path: Path, own: str, other: str, number: int) -> None:
    files = {
        "shop/api/main.py": app(IMPORT),
        "shop/services/llm.py": own,
        "shop/api/old/services/llm.py": other,  # shares more folders, but is below
        "uses.py": "from shop.api.old.services.llm import ask\nfrom fastapi import FastAPI\n",
    }
    assert len(found(tmp_path, files)) == number


def test_a_package_hides_a_module_of_its_name(tmp_path: Path) -> None:
    files = {"llm.py": MODEL, "main.py": app("from llm import ask")}
    assert found(tmp_path, files) == ["main.py"]
    assert found(tmp_path, files | {"llm/__init__.py": "limit = 5"}) == []
    assert found(tmp_path, files | {"llm/__init__.py": MODEL}) == ["main.py"]


DIRECT = """
from fastapi import FastAPI
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI()

@app.post("/ask")
async def answer(text: str):
    {before}
    return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
"""


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("from services.llm import limit", 0),
        ("import services.llm", 0),
        ("with lock:\n        from services.llm import limit", 1),  # which may suppress it
        ("try:\n        from services.llm import limit\n    except ImportError:\n        limit = 5", 1),
        ("if text:\n        from services.llm import limit", 1),
        ("from services.cart import limit", 1),
        ("from .services.llm import limit", 1),
        ("def later():\n        from services.llm import limit", 1),
    ],
)
def test_what_follows_a_failing_import_is_not_run(tmp_path: Path, before: str, number: int) -> None:
    own = {"shop/services/__init__.py": "", "shop/services/cart.py": "limit = 5"}
    assert len(found(tmp_path, TREES | own | {"shop/main.py": DIRECT.format(before=before)})) == number


@pytest.mark.parametrize(
    ("inside", "tools", "number"),
    [
        ("from services.tools import parse", "def other(): ...", 0),
        ("from services.tools import parse", "def parse(): ...", 1),
        ("from services.tools import parse", "from elsewhere import *", 1),
        ("from services.tools import *", "def other(): ...", 1),
        ("if text:\n        from services.tools import parse", "def other(): ...", 1),
        ("try:\n        from services.tools import parse\n    except ImportError:\n        return []", "def other(): ...", 0),
        ("try:\n        from services.tools import parse\n    except ImportError:\n        pass", "def other(): ...", 1),
    ],
)
def test_a_function_that_imports_a_name_that_is_not_there(tmp_path: Path, inside: str, tools: str, number: int) -> None:
    files = {"app.py": app(IMPORT, inside), "services/llm.py": MODEL, "services/tools.py": tools + "\n"}
    assert len(found(tmp_path, files)) == number


def test_what_is_before_a_failing_import_is_run(tmp_path: Path) -> None:
    late = DIRECT.format(before="pass").replace("return await", "result = await") + f"    {IMPORT}\n    return result\n"
    assert found(tmp_path, TREES | {"shop/services/__init__.py": "", "shop/main.py": late}) == ["shop/main.py"]


@pytest.mark.parametrize(
    ("imported", "number"),
    [
        ("from .routes.chat import router", 1),
        ("from routes.chat import router  # not the one of infra", 1),
        ("from .routes.chat import router\nfrom infra.shared.routes.chat import router as other\napp.include_router(other)", 2),
        ("from .routes.chat import router\nfrom infra.shared.routes import chat\napp.include_router(chat.router)", 2),
    ],
)
def test_a_copy_of_a_router_that_no_application_includes(tmp_path: Path, imported: str, number: int) -> None:
    files = {
        "shop/app.py": INCLUDES.format(imported=imported),
        "shop/routes/chat.py": ROUTER,
        "infra/shared/routes/chat.py": ROUTER,
    }
    assert len(found(tmp_path, files)) == number


SERVICE = "class Analysis:\n    {held}\n    def report(self, user):\n        return user.name\n"
CALLS = """
from fastapi import FastAPI
from analysis import Analysis
import google.generativeai as genai

app = FastAPI()

class Steps:
    def __init__(self, given=None):
        self.service = {made}

    def run(self, text):
        return self.service.generate_content(text)

@app.post("/ask")
def answer(text: str):
    return Steps().run(text)
"""


@pytest.mark.parametrize(
    ("held", "made", "number"),
    [
        ("limit = 5", "Analysis()", 0),
        ("limit = 5", "genai.GenerativeModel('m')", 1),
        ("limit = 5", "given or Analysis()", 1),
        ("generate_content = genai.GenerativeModel('m').generate_content", "Analysis()", 1),
        ("def __getattr__(self, name):\n        return getattr(model, name)\n", "Analysis()", 1),
    ],
)
def test_a_class_of_the_project_without_the_method(tmp_path: Path, held: str, made: str, number: int) -> None:
    """`generate_content` is Gemini's, but an object of the project that does not have it raises."""
    files = {
        "analysis.py": "import google.generativeai as genai\n" + SERVICE.format(held=held),
        "main.py": CALLS.format(made=made),
    }
    assert len(found(tmp_path, files)) == number

"""The rules of the house: small files and functions, unique class names, Markdown that fits, links and commands that work.

The lists below hold what breaks a rule today. They only shrink: a line that is no longer needed makes its test fail, too.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import re
import shlex
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import mutants
from tools.markdown import pages

from hangup.cli.main import COMMANDS, make_parser

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    path for place in ("src", "tests", "tools", "bench") for path in (ROOT / place).rglob("*.py") if ".envs" not in path.parts
]

FILE_LINES = 500
LONG_FILES: set[str] = set()
FUNCTION_LINES = 60
LONG_FUNCTIONS = {
    "tests/fuzz/grammar.py event",
    "tests/gateway/test_races.py test_soak",
}
SHARED_CLASS_NAMES: set[str] = set()
URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
FORGE = URLS["Source"]
REPOSITORY = FORGE.removeprefix("https://github.com/")
OURS = re.compile(rf"^https://(github|raw\.githubusercontent)\.com/{REPOSITORY}/(blob/|tree/)?main/")
PROSE_WIDTH, CODE_WIDTH = 100, 128


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_files_are_short() -> None:
    long = {name_of(path) for path in SOURCES if len(path.read_text().splitlines()) > FILE_LINES}
    assert long - LONG_FILES == set(), f"longer than {FILE_LINES} lines: split them by what they are about"
    assert LONG_FILES - long == set(), "short enough now: take them off the list"


def test_a_test_files_name_is_used_once() -> None:
    """pytest imports test files by their bare names: of two with the same name only one is run."""
    names = [path.name for path in SOURCES if path.name.startswith("test_")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_functions_are_short() -> None:
    long = {
        f"{name_of(path)} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
    }
    assert long - LONG_FUNCTIONS == set(), f"longer than {FUNCTION_LINES} lines"
    assert LONG_FUNCTIONS - long == set(), "short enough now: take them off the list"


ANY_AT_THE_EDGE = {  # where a value comes from outside, or a library has no types; `dict[str, Any]` is JSON, and is not listed
    "src/hangup/gateway/apis/base.py",
    "src/hangup/core/spans.py",  # fields of OTLP's JSON
    "src/hangup/gateway/apis/media.py",  # JSON
    "src/hangup/gateway/apis/openai_chat.py",  # JSON
    "src/hangup/gateway/backends/adapters/base.py",  # JSON
    "src/hangup/gateway/backends/busy.py",  # NVML
    "src/hangup/gateway/backends/memory.py",  # as asyncio's transports have it
    "src/hangup/gateway/hosts/store.py",  # a client that may be missing, and its answers
    "src/hangup/gateway/http/head.py",  # httptools; notes of any type
    "src/hangup/gateway/http/jsonbody.py",  # JSON
    "src/hangup/gateway/jobs/batches.py",  # JSON
    "src/hangup/gateway/jobs/calls.py",  # JSON
    "src/hangup/gateway/jobs/messages.py",  # JSON
    "src/hangup/gateway/jobs/provider_sharing.py",  # values of messages
    "src/hangup/gateway/jobs/responses.py",  # JSON
    "src/hangup/gateway/members/peers.py",  # rows of messages
    "src/hangup/gateway/members/stop_hub.py",  # rows of messages
    "src/hangup/gateway/otlp.py",  # protobuf
    "src/hangup/gateway/relay/events.py",  # JSON
    "src/hangup/gateway/store/postgresql.py",  # rows of PostgreSQL, and a client that may be missing
    "src/hangup/gateway/store/worker_thread.py",  # one queue for work with results of any type, and rows of any
    "src/hangup/gateway/store/jobs/rows.py",  # rows of SQLite
    "src/hangup/gateway/store/jobs/table.py",  # rows of SQLite
}


def untyped(source: str) -> list[int]:
    """Return the lines that use `Any` for something other than a JSON object."""
    tree = ast.parse(source)
    json = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"
        for name in ast.walk(node)
    }
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any" and node not in json]


def test_types_are_known_between_the_edges() -> None:
    places = [path for part in ("core", "gateway") for path in (ROOT / "src/hangup" / part).rglob("*.py")]
    found = {name_of(path) for path in places if untyped(path.read_text())}
    assert found - ANY_AT_THE_EDGE == set(), "say what it is: a type, a TypeVar, a Protocol or `object`"
    assert ANY_AT_THE_EDGE - found == set(), "typed now: take them off the list"
    assert untyped("a: dict[str, Any]\nb: list[Any]\ndef c(d: Any) -> None: ...") == [2, 3]


QUESTION = re.compile(r"^_?(is|has|can|may|should|must|needs|wants|could|would|any|all)_")


def acting_questions(source: str) -> list[str]:
    """Return the functions whose names are questions, but which set or delete an attribute."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and QUESTION.match(function.name):
            stores = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
            if any(not isinstance(node.ctx, ast.Load) for node in stores):
                found.append(function.name)
    return found


def test_a_question_changes_nothing() -> None:
    found = {name_of(path): acting_questions(path.read_text()) for path in (ROOT / "src").rglob("*.py")}
    assert {place: names for place, names in found.items() if names} == {}, "name it after what it does"
    assert acting_questions("def may_go(a):\n    a.b += 1\ndef has_it(a):\n    return a.b\n") == ["may_go"]


def test_a_class_name_is_used_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name_of(path))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    new = {name: places for name, places in shared.items() if name not in SHARED_CLASS_NAMES}
    assert new == {}, "one name for two things: find a better one for one of them"
    assert SHARED_CLASS_NAMES - set(shared) == set(), "used once now: take them off the list"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_markdown_fits_the_screen(page: Path) -> None:
    """Tables, unbreakable text (a link, a long word) and generated help texts may be wider."""
    for number, line, in_code in lines_of(page):
        if in_code:
            assert len(line) <= CODE_WIDTH or page.name == "commands.md", f"{name_of(page)}:{number}"
        elif not line.lstrip().startswith("|"):
            breakable = re.sub(r"`[^`]*`|!?\[[^\]]*\]\([^)]*\)|\S{60,}", "…", line)
            assert len(breakable) <= PROSE_WIDTH, f"{name_of(page)}:{number}"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to our own forge must lead to a file here. README has only such links, so that it works on a package index."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = OURS.sub(f"{ROOT}/", target).partition("#")
        if path.startswith(("http://", "https://")):
            continue
        assert name_of(page) != "README.md" or target.startswith("https://"), (
            f"README links to {target}, which an index cannot open"
        )
        file = (page.parent / path) if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{name_of(page)} links to {target}: there is no such heading"


def test_the_forge_has_one_address() -> None:
    """`[project.urls]` defines it. Files that cannot read it from there (README, templates, `hangup --help`) must agree with
    it."""
    for name, url in URLS.items():
        assert url == FORGE or url.startswith(f"{FORGE}/"), f"{name} in [project.urls] is at another forge: {url}"
        assert not OURS.match(url) or Path(OURS.sub(f"{ROOT}/", url)).exists(), f"{name} in [project.urls] leads nowhere: {url}"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    ).stdout
    mention = re.compile(r"(?:github|raw\.githubusercontent)\.com/([\w.-]+/hangup)\b")
    seen = set()
    for name in filter(None, tracked.split("\0")):
        file = ROOT / name
        if file.suffix in {".md", ".py", ".toml", ".yml", ".html", ".js"} and file.is_file():
            found = set(mention.findall(file.read_text()))
            assert found <= {REPOSITORY}, f"{name} names {found}, pyproject.toml {REPOSITORY}"
            seen |= {name} if found else set()
    assert {"README.md", "SECURITY.md", "src/hangup/cli/main.py", ".github/ISSUE_TEMPLATE/config.yml"} <= seen


def test_commands_in_the_docs_exist() -> None:
    """The parser and the Makefile must know every `hangup …` and `make …` of a console example."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    parser, seen = make_parser(), set()
    for page, command in commands():
        words = shlex.split(command, comments=True)
        words = words[: next((i for i, word in enumerate(words) if word in {"|", ">", "&", "&&", "2>"}), len(words))]
        program = words[0].rpartition("/")[2]
        if program == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, f"{page}: {command}"
        elif program == "hangup" and words[1] in COMMANDS:
            try:
                parser.parse_args(words[1:])
            except (SystemExit, argparse.ArgumentError):
                pytest.fail(f"{page}: {command}")
        else:
            continue
        seen.add(" ".join(words[:2]))
    assert {"make run", "make demo", "make test", "hangup serve", "hangup ps", "hangup report"} <= seen


def lines_of(page: Path) -> Iterator[tuple[int, str, bool]]:
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        else:
            yield number, line, in_code


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    if page.suffix != ".md":
        return set()
    titles = [line.lstrip("#").strip() for _, line, in_code in lines_of(page) if line.startswith("#") and not in_code]
    named = set(re.findall(r'<a id="([^"]+)">', page.read_text()))
    return named | {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands() -> Iterator[tuple[str, str]]:
    for page in pages():
        for _, line, in_code in lines_of(page):
            if in_code and line.startswith("$ "):
                yield name_of(page), line.removeprefix("$ ")


# Private words that were replaced: what they stood for is called load, item, stop, release, log_event, record, tasks …
RETIRED_WORDS = {
    *("book", "books", "cares", "duties", "duty", "errand", "errands", "haunting", "heard", "leftover", "leftovers", "lefts"),
    *("board", "desk", "ears", "keeper", "meant", "seat", "seats", "told", "undertake", "undertaken", "undertaking"),
}
RETIRED_PHRASE = "let_go"


def identifiers(source: str) -> Iterator[tuple[str, int]]:
    """Yield all names that the source uses or defines, with their lines; not the words in strings and comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_retired_words_do_not_come_back_as_names() -> None:
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in (ROOT / "src").rglob("*.py")
        for name, line in identifiers(path.read_text())
        if words_of(name) & RETIRED_WORDS or RETIRED_PHRASE in name
    ]
    assert found == [], "docs/glossary.md has the words that are used instead"
    assert words_of("_SeatMap_told") == {"seat", "map", "told"}


def test_the_glossary_names_what_exists() -> None:
    """The source must contain each word that names code, as a class or at least as a word of some name."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `(\w+)` \|$", (ROOT / "docs/glossary.md").read_text(), re.M)
    assert len(rows) >= 40 and [word for word, _ in rows] == sorted((word for word, _ in rows), key=str.lower)
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    classes = set(re.findall(r"^ *class (\w+)", text, re.M))
    for word, name in rows:
        assert name in classes if name[0].isupper() else re.search(rf"\b\w*{name}\w*\b", text), f"{word}: {name}"


KEYWORDS = set(keyword.kwlist) | {"_max", "HU00"}  # and parts of names
FOREIGN_NAMES = {  # of other packages and in examples, where comments explain them
    *("with_streaming_response", "Llama", "langchain_openai", "ChatOpenAI", "py312"),
    *("Service", "rag"),
}


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments and docstrings, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node, clean=False) or ""


def quoted_names(text: str) -> set[str]:
    """Return the parts of all `names`, `dotted.names` and `calls()` in a text."""
    return {part for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text) for part in name.split(".")}


def test_comments_name_what_exists() -> None:
    """A theory of operation is worthless once its names are gone: the source must have every name that a comment quotes."""
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    known = KEYWORDS | FOREIGN_NAMES | {"py"}
    for path, source in sources.items():
        known |= {name for name, _ in identifiers(source)} | set(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.alias):
                known |= set(node.name.split("."))
            elif isinstance(node, ast.ImportFrom) and node.module:
                known |= set(node.module.split("."))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
                known |= set(node.value.split("."))  # a key of JSON, a command, a field of the log
    found = [
        f"{name_of(path)}:{line} {name}"
        for path, source in sources.items()
        if path.relative_to(ROOT / "src/hangup").parts[0]
        in ("config", "core", "engine", "gateway", "sim")  # not about others' code
        for line, text in prose(source)
        for name in quoted_names(text) - known
    ]
    assert found == [], "renamed? A name of another package belongs on the list FOREIGN_NAMES"
    assert quoted_names("`a`, `b.c()` and `d e`") == {"a", "b", "c"}


def test_mutants_know_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module that makes decisions needs tests for its mutants; a renamed module would be left out silently."""
    monkeypatch.chdir(ROOT)
    paths = {path for path in mutants.CORE.rglob("*.py") if path.name not in ("__init__.py", "reasons.py")}
    assert {path for path in paths if not mutants.tests_of(path)} == {mutants.CORE / "clocks.py"}, "has only tests with a store"
    assert all((ROOT / test).exists() for tests in mutants.TESTS.values() for test in tests)
    assert all((mutants.CORE / name).exists() for name in mutants.TESTS)

"""`hangup docs`: every page is shown, every mention of one leads to a page, and links lead somewhere without a checkout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangup.cli import docs
from hangup.cli.main import main
from hangup.errors import HangupError

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs"


def test_every_page_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    assert docs.topics(PAGES)
    for topic in docs.topics(PAGES):
        assert re.search(rf"^{topic} ", listed, re.M), topic
        assert main(["docs", topic]) == 0
        assert capsys.readouterr().out.startswith("#"), topic


def test_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "operations.md#tls"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("## TLS\n") and shown.count("\n## ") == 0 and "tls_cert" in shown
    assert docs.section_of("# A\n## B\nb\n```\n# no heading\n```\n### C\nc\n## D\nd", "b").endswith("```\n### C\nc")
    assert main(["docs", "operations#nothing"]) == 1
    assert "it has ports" in capsys.readouterr().err


def test_a_word_of_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "Zombies"]) == 0
    assert "operations#zombies-and-the-ladder" in capsys.readouterr().out
    assert main(["docs", "configuraton"]) == 1
    assert "did you mean configuration" in capsys.readouterr().err
    assert main(["docs", "../CHANGELOG"]) == 1  # no way out of the folder


def test_web(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["docs", "operations#tls", "--web"]) == 0
    assert capsys.readouterr().out.split() == opened
    (address,) = opened
    path, _, anchor = address.removeprefix(docs._FORGE).partition("#")
    assert anchor == "tls" and (ROOT / path).is_file()


def test_links_out_of_the_pages_become_addresses() -> None:
    text = "[a](../CHANGELOG.md) [b](apis.md#x) ![c](figures/demo.svg) [d](#here) [e](https://example.com/) [f](../x/y.md)"
    shown = docs.with_addresses(text, "guides/one")
    assert f"[a]({docs._FORGE}docs/CHANGELOG.md)" not in shown  # from docs/guides, this is a page
    assert f"![c]({docs._FORGE}docs/guides/figures/demo.svg)" in shown
    assert "[b](apis.md#x)" in shown and "[d](#here)" in shown and "[e](https://example.com/)" in shown
    assert f"[a]({docs._FORGE}CHANGELOG.md)" in docs.with_addresses(text, "README")


def test_missing_pages_name_the_forge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "hangup" / "cli" / "docs.py"))
    with pytest.raises(HangupError, match=re.escape(docs._FORGE)):
        docs.pages_folder()


def test_every_mention_leads_to_a_page() -> None:
    """In help texts, errors and pages. A help text that names a file of the checkout helps nobody who installed a wheel."""
    mentions: dict[str, str] = {}
    for path in [*(ROOT / "src").rglob("*.py"), *PAGES.rglob("*.md"), ROOT / "README.md"]:
        text = path.read_text()
        for match in re.findall(r"`hangup docs ([\w/#-]+)`", text):
            mentions[match] = str(path)
    assert len(mentions) >= 5
    for mention, place in mentions.items():
        name, _, anchor = mention.partition("#")
        assert (PAGES / f"{name}.md").is_file(), f"{place}: hangup docs {mention}"
        assert not anchor or docs.section_of((PAGES / f"{name}.md").read_text(), anchor)


def test_no_help_text_names_a_file_of_the_checkout() -> None:
    """Docstrings and comments may: whoever reads them has the files."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "src").rglob("*.py")
        for node in texts(ast.parse(path.read_text()))
        if re.search(r"(?<![/\w])docs/[\w-]+\.md", str(node.value))
    ]
    assert found == [], "name `hangup docs TOPIC` instead"


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings of a module, without the docstrings."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node

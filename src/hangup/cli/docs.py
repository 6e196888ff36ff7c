"""`hangup docs`: shows the documentation of the installed version, which the wheel brings along."""

from __future__ import annotations

import argparse
import difflib
import posixpath
import pydoc
import re
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangup.cli.table import table
from hangup.errors import HangupError

_FORGE = "https://github.com/hangup-dev/hangup/blob/main/"
_FENCE = "```"

_EXAMPLES = """\
examples:
  hangup docs                       list the pages
  hangup docs operations            show a page
  hangup docs operations#tls        show one section of it
  hangup docs drain                 no page has this name: list the sections that have it in their heading
  hangup docs operations --web      open the page in a browser
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "docs",
        description="Shows the documentation that belongs to this version. It needs no network and no checkout.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a page, PAGE#SECTION, or a word of a heading")
    parser.add_argument("--web", action="store_true", help="open the page of the latest version in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder = pages_folder()
    name, _, anchor = (arguments.topic or "").partition("#")
    name = name.removesuffix(".md")
    page = folder / f"{name}.md"
    if not name:
        pydoc.pager("\n".join([*_list_of_pages(folder), ""]))
    elif folder not in page.resolve().parents or not page.is_file():
        return _list_matches(folder, arguments.topic)
    elif arguments.web:
        address = f"{_FORGE}docs/{name}.md" + (f"#{anchor}" if anchor else "")
        print(address)
        webbrowser.open(address)
    else:
        text = page.read_text(encoding="utf-8")
        pydoc.pager(with_addresses(section_of(text, anchor) if anchor else text, name).rstrip("\n") + "\n")
    return 0


def pages_folder() -> Path:
    """Return the folder of the pages: in the installed package, or in the checkout that it is run from."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "docs", package.parent.parent / "docs"):
        if (folder / "README.md").is_file():
            return folder
    raise HangupError(f"the documentation is not installed\n  hint: read it at {_FORGE}docs")


def topics(folder: Path) -> list[str]:
    return sorted(page.relative_to(folder).with_suffix("").as_posix() for page in folder.rglob("*.md"))


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the number of its line, the level and the words of each heading of a page."""
    in_code = False
    for number, line in enumerate(text.splitlines()):
        if line.lstrip().startswith(_FENCE):
            in_code = not in_code
        elif not in_code and (match := re.match(r"(#+) (.*)", line)):
            yield number, len(match[1]), match[2].strip()


def anchor_of(heading: str) -> str:
    """Return the part of a link behind the #, as the forge makes it from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def section_of(text: str, anchor: str) -> str:
    found = list(headings(text))
    for number, level, heading in found:
        if anchor_of(heading) == anchor.lower():
            end = next((line for line, other, _ in found if line > number and other <= level), None)
            return "\n".join(text.splitlines()[number:end])
    names = ", ".join(anchor_of(heading) for _, level, heading in found if level > 1)
    raise HangupError(f"the page has no section {anchor!r}\n  hint: it has {names}")


def with_addresses(text: str, name: str) -> str:
    """Replace links to what is not a page (the changelog, an example, a picture) with their addresses at the forge."""

    def replaced(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(name), target))
        is_page = path.startswith("docs/") and path.partition("#")[0].endswith(".md")
        return match[0] if is_page else f"]({_FORGE}{path})"

    return re.sub(r"\]\(([^)\s]+)\)", replaced, text)


def _list_of_pages(folder: Path) -> list[str]:
    rows = []
    for topic in topics(folder):
        title = next((heading for _, _, heading in headings((folder / f"{topic}.md").read_text(encoding="utf-8"))), "")
        rows.append((topic, title))
    return [*table(("topic", "page"), rows), "", "hangup docs TOPIC shows a page; hangup docs README is where to start."]


def _list_matches(folder: Path, topic: str) -> int:
    """List the sections that have the topic in their headings, or fail and name the pages whose names are similar."""
    rows = [
        (page if level == 1 else f"{page}#{anchor_of(heading)}", heading)
        for page in topics(folder)
        for _, level, heading in headings((folder / f"{page}.md").read_text(encoding="utf-8"))
        if topic.lower() in heading.lower()
    ]
    if not rows:
        near = difflib.get_close_matches(topic, topics(folder), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`hangup docs` lists the pages"
        raise HangupError(f"no page and no heading has {topic!r} in its name\n  hint: {hint}")
    print(f"No page is called {topic!r}. Sections with it in their heading:", file=sys.stderr)
    print("\n".join(table(("topic", "heading"), rows)))
    return 0

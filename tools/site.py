"""Builds the documentation as a site: `make site`. Runs in an environment of its own, which has MkDocs and nothing of hangup.

`build` (the default) fails on broken links and headings, on pages that the navigation lacks, and on pages that would load
anything from another host. `serve` shows the site while you write. `deploy VERSION` adds a version to the branch gh-pages,
which a web server or the forge can publish; readers choose between the versions there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".site"
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_HARMLESS = {"canonical", "alternate", "edit", "next", "prev"}  # links that a browser does not follow by itself


class _Loaded(HTMLParser):
    """Collects what a browser loads with a page, and parts for which the theme would load a script from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        target = given.get(_LOADS.get(tag, "")) or ""
        if target.startswith(("http:", "https:", "//")) and given.get("rel") not in _HARMLESS:
            self.found.append(target)
        if "mermaid" in (given.get("class") or "").split() or given.get("data-md-component") == "source":
            self.found.append(f"<{tag} class={given.get('class')!r}>")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("action", nargs="?", choices=["build", "serve", "deploy"], default="build")
    parser.add_argument("version", nargs="?", help="for deploy, such as 0.1")
    arguments = parser.parse_args()
    if arguments.action == "serve":
        return _run("mkdocs", "serve")
    if arguments.action == "deploy":
        if not arguments.version:
            parser.error("deploy needs a version, such as 0.1")
        code = _run("mike", "deploy", "--update-aliases", arguments.version, "latest")
        return code or _run("mike", "set-default", "--allow-empty", "latest")
    return _run("mkdocs", "build", "--strict") or _check()


def _run(program: str, *arguments: str) -> int:
    folder = str(Path(sys.executable).parent)
    # mike looks for mkdocs, and the theme advertises its successor on each run.
    env = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}", "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([f"{folder}/{program}", *arguments], cwd=ROOT, env=env, check=False).returncode  # noqa: S603


def _check() -> int:
    pages, wrong = 0, 0
    for path in sorted(SITE.rglob("*.html")):
        pages += 1
        loaded = _Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))
        for target in loaded.found:
            wrong += 1
            print(f"{path.relative_to(SITE)} loads {target}", file=sys.stderr)
    print(f"{SITE.name}: {pages} pages")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main())

"""For MkDocs (`mkdocs.yml`): links to files outside docs/ lead to the forge, because the site does not have them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<=\]\()(\.\./[^)\s#]*)")


def on_page_markdown(markdown: str, /, *, page: Any, config: Any, **_: Any) -> str:
    """Called by MkDocs for each page."""

    def to_forge(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[0]))
        if name.startswith("docs/"):
            return match[0]
        kind = "tree" if (ROOT / name).is_dir() else "blob"
        return f"{config['extra']['forge']}/{kind}/main/{name}"

    return _LINK.sub(to_forge, markdown)

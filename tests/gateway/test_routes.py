"""Routes: an API is one file that declares its own paths."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hangup.gateway import apis
from hangup.gateway.apis import routes
from hangup.gateway.apis.engine_paths import PASSED

NEWCOMER = """
from hangup.gateway.apis.base import Api

class NewcomerApi(Api):
    name = "newcomer.talk"
    paths = {"/v1/talk": ("POST",), "/v1/talk/*": ("GET",)}
"""


def test_a_new_api_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newcomer.py").write_text(NEWCOMER)
    monkeypatch.setattr(apis, "__path__", [*apis.__path__, str(tmp_path)])
    found = {route.path: (route.methods, route.api.name) for route in routes.discovered()}
    assert found["/v1/talk"] == (("POST",), "newcomer.talk") and found["/v1/talk/*"] == (("GET",), "newcomer.talk")
    assert found.keys() - {"/v1/talk", "/v1/talk/*"} < routes.BUILT_IN.keys()


def test_no_two_apis_declare_the_same_path() -> None:
    counts = Counter(route.path for route in routes.discovered()) + Counter(PASSED.keys())
    assert [path for path, count in counts.items() if count > 1] == []


def test_a_subclass_does_not_inherit_paths() -> None:
    """/generate has TGI's API only for TGI's bodies: its class must not inherit the paths of its parent."""
    assert routes.BUILT_IN["/generate_stream"].api.name == "tgi.generate"
    assert type(routes.BUILT_IN["/generate_stream"].api) is not routes.GenerateApi

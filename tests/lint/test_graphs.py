"""A LangGraph graph is inference if one of its nodes is, or if nothing is known of a node."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint.run import lint_paths

APP = """
    from fastapi import FastAPI
    from graph import build

    app = FastAPI()
    agent = build()

    @app.post("/ask")
    async def ask(question: str):
        return await agent.ainvoke({"question": question})
"""
GRAPH = """
    from langgraph.graph import StateGraph
    from langgraph.prebuilt import ToolNode
    from nodes import route, respond

    def build():
        builder = StateGraph(dict)
        builder.add_node("route", route)
        builder.add_node("respond", respond)
        builder.add_node("tools", ToolNode([len]))
        return builder.compile()
"""
RULES_ONLY = """
    def route(state):
        return {"next": "respond" if normalize(state["question"]) else "end"}

    def normalize(text):
        return text.strip().lower()

    def respond(state):
        return {"answer": "ask a librarian"}
"""
MODEL = """
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(model="m")

    def route(state):
        return {"next": "respond"}

    def respond(state):
        return {"answer": llm.invoke(state["question"])}
"""


def lint(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> list[str]:
    for name, text in {"app": APP, "graph": GRAPH, **files}.items():
        (folder / f"{name}.py").write_text(dedent(text))
    monkeypatch.chdir(folder)
    return [f"{f.path}:{f.line} {f.code}" for f in lint_paths([Path()]).findings]


def test_a_graph_of_plain_rules_is_no_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lint(tmp_path, monkeypatch, nodes=RULES_ONLY) == []


@pytest.mark.parametrize(
    "nodes",
    [
        MODEL,
        RULES_ONLY.replace("text.strip().lower()", "retried(lambda: model.invoke(text))"),
    ],
    ids=["model", "in a lambda below"],
)
def test_a_graph_with_a_model_is_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str) -> None:
    assert lint(tmp_path, monkeypatch, nodes=nodes) == ["app.py:10 HU004"]


def test_a_node_that_calls_something_unknown_is_none_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = RULES_ONLY.replace('"ask a librarian"', 'state["service"].generate_suggestions(state["question"])')
    assert lint(tmp_path, monkeypatch, nodes=nodes) == []


def test_a_node_of_another_package_may_run_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lint(tmp_path, monkeypatch, graph=GRAPH.replace("from nodes", "from elsewhere")) == ["app.py:10 HU004"]


def test_a_graph_in_a_thread_counts_as_its_nodes_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = APP.replace("await agent.ainvoke({", "await asyncio.to_thread(agent.invoke, {").replace(
        "from fast", "import asyncio\n    from fast"
    )
    assert lint(tmp_path, monkeypatch, app=app, nodes=RULES_ONLY) == []
    assert lint(tmp_path, monkeypatch, app=app, nodes=MODEL) == ["app.py:11 HU004"]


def test_a_graph_whose_maker_is_unknown_counts_as_all_graphs_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = APP.replace("agent.ainvoke", "app.state.graph.ainvoke")
    assert lint(tmp_path, monkeypatch, app=app, nodes=RULES_ONLY) == []
    assert lint(tmp_path, monkeypatch, app=app, nodes=MODEL) == ["app.py:10 HU004"]
    assert lint(
        tmp_path, monkeypatch, app=app.replace("from graph import build", "").replace("build()", "None"), graph="", nodes=""
    ) == ["app.py:10 HU004"], "nothing is known of it"

"""Calls of packages whose verbs say nothing by themselves, and those that only their arguments tell."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import lint_source

HANDLER = """
    {imports}
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/ask")
    async def ask(question: str):
        return await {call}
"""


def codes(imports: str, call: str) -> list[str]:
    return [f.code for f in lint_source(dedent(HANDLER.format(imports=imports, call=call)))]


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("autogen_agentchat", "team.run(task=question)"),
        ("browser_use", "Agent(question).run()"),
        ("camel", "chat_agent.astep(question)"),
        ("emergentintegrations", "conversation.send_message(question)"),
        ("google", "client.aio.interactions.create(input=question)"),
        ("graphrag", "api.local_search(query=question)"),
        ("huggingface_hub", "remote.text_generation(question)"),
        ("ibm_watsonx_ai", "model.agenerate(question)"),
        ("replicate", "replicate.async_run(MODEL, input=question)"),
        ("semantic_kernel", "kernel.invoke_prompt(question)"),
        ("semantic_kernel", "planner.create_plan(question)"),
        ("semantic_kernel", "chat_function.invoke(kernel, question)"),
    ],
)
def test_a_package_says_that_its_verbs_are_inference(package: str, call: str) -> None:
    assert codes(f"import {package}", call) == ["HU004"]
    assert codes("import something", call) == []


def test_an_answer_of_some_type() -> None:
    typed = "client.create(messages=[question], response_model=Answer)"
    assert codes("import instructor", typed) == ["HU004"]
    assert codes("import instructor", "client.create(response_model=Answer)") == []


def test_a_chat_with_messages_and_a_model() -> None:
    assert codes("import service", "service.chat(model=MODEL, messages=[question])") == ["HU004"]
    assert codes("import service", "service.chat(messages=[question])") == []


@pytest.mark.parametrize("call", ["crew.kickoff_for_each_async(inputs=[question])", "crew.akickoff(inputs=question)"])
def test_crews(call: str) -> None:
    assert codes("import crewai", call) == ["HU004"]


@pytest.mark.parametrize(("name", "found"), [("chains", ["HU004"]), ("tables", [])])
def test_models_in_a_table(name: str, found: list[str]) -> None:
    """`chains["summary"]` is one of the chains."""
    assert codes("from langchain_core import prompts", f'{name}["summary"].ainvoke(question)') == ["HU004"]  # whatever it is
    assert codes("from langchain_core import prompts", f'to_thread({name}["summary"].invoke, question)') == found


@pytest.mark.parametrize(("path", "found"), [("api/generate", ["HU004"]), ("api/tags", [])])
def test_an_address_that_ends_with_a_constant(path: str, found: list[str]) -> None:
    imports = f'import httpx\n    client = httpx.AsyncClient()\n    PATH = "{path}"'
    assert codes(imports, 'client.post(f"{BASE}/{PATH}")') == found


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ('os.getenv("ENGINE_URL", "http://localhost:11434/api/generate")', ["HU004"]),
        ('os.environ.get("ENGINE_URL") or "http://localhost:11434/api/generate"', ["HU004"]),
        ('config("ENGINE_URL", default="http://localhost:1234/v1/chat/completions")', ["HU004"]),
        ('os.getenv("ENGINE_URL", "http://localhost:11434/api/tags")', []),
        ('os.getenv("ENGINE_URL")', []),
        ('table.get(name, "http://localhost:11434/api/generate")', []),  # maybe one of others
    ],
)
def test_an_address_that_a_variable_may_change(address: str, found: list[str]) -> None:
    imports = f"import httpx, os\n    client = httpx.AsyncClient()\n    ADDRESS = {address}"
    assert codes(imports, "client.post(ADDRESS, json=question)") == found

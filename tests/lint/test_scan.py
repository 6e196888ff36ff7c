"""Files are chosen by their text: what the linter takes for inference in a tree shows in the text as well."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hangup.lint import RULES, http_calls, scan, vocabulary
from hangup.lint.hints import FORWARDS, INFERENCE
from hangup.lint.run import lint_paths
from hangup.lint.source import Module

CALLS = [
    'client.chat.completions.create(model="m")',
    'client.messages.create(model="m", messages=[], max_tokens=500)',
    'client.responses.stream(input="x")',
    'client.chat \\\n    .completions.create(model="m")',
    'from litellm import acompletion as ask; ask(model="m")',
    'import ollama; ollama.chat(model="m")',
    'self.ollama_client.generate(prompt="x")',
    'from agents import Runner; Runner.run(agent, "x")',
    'chain.ainvoke("x")',
    'agent.invoke("x")',
    'from langchain_openai import ChatOpenAI; llm = ChatOpenAI(); llm.stream("x")',
    'from transformers import pipeline; pipe = pipeline("x"); pipe("x")',
    'from strands import Agent; helper = Agent(); helper("x")',
    'from llama_cpp import Llama; alpaca = Llama("m"); alpaca("x")',
    'from ctransformers import AutoModelForCausalLM as Auto; alpaca = Auto.from_pretrained("m"); alpaca("x")',
    'engine.generate("x")',
    'models[0].model.generate("x")',
    'from vllm import LLM; runner = LLM("m"); runner.generate("x")',
    'self.query_engine.query("x")',
    'http.post(f"{url}/v1/chat/completions")',
    'http.stream("POST", "http://engine/api/generate")',
    'urlopen("http://engine/api/generate")',
    'http.post(url, json={"model": "m", "messages": []})',
    "session.post(url, json=body)",
    'get_client().request("POST", url, data=body)',
    'def ask(call_llm): return call_llm("x")',
]


@pytest.mark.parametrize("source", [*CALLS, *(rule.bad for rule in RULES.values())])
def test_a_call_that_is_inference_shows_in_the_text(source: str) -> None:
    module = Module(source, ast.parse(source))
    assert any(vocabulary.direct(module, s) or http_calls.forwards(module, s) for s in module.calls()), "the test itself"
    data = source.encode()
    _, roots = scan.imports(data, "app.py")
    assert scan.says(data, scan.words_of(data), roots) & (INFERENCE | FORWARDS)


def test_a_plain_file_says_nothing_of_inference() -> None:
    data = b"import json\n\ndef load(path):\n    return json.loads(path.read_text())\n"
    _, roots = scan.imports(data, "app.py")
    assert scan.says(data, scan.words_of(data), roots) == 0


def test_a_file_that_only_imports_others_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("calls.py").write_text("async def ask(client):\n    return await client.chat.completions.create(model='m')\n")
    Path("middle.py").write_text("import calls\n\ndef other():\n    return 1\n")
    handler = "@app.post('/ask')\nasync def handle():\n    return await calls.ask(client)\n"
    Path("app.py").write_text(f"from fastapi import FastAPI\nimport calls, middle\napp = FastAPI()\n{handler}")
    report = lint_paths([Path()])
    assert [(f.path, f.code) for f in report.findings] == [("app.py", "HU004")]
    assert report.parsed == 2, "calls.py holds the call, app.py names the function, middle.py does not"

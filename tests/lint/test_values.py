"""How values reach a handler: app.state, globals, annotations, dependencies, functions that are handed over, other SDKs."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

MODEL = """
    from openai import AsyncOpenAI, OpenAI

    client = AsyncOpenAI()
    blocking = OpenAI()

    class Rag:
        async def process(self, text):
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

        def answer(self, text):
            return blocking.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def respond(text):
        return await Rag().process(text)
"""
HEAD = "from typing import Any, Dict\nfrom fastapi import Depends, FastAPI, Request\nfrom model import Rag, respond\n"


def found(tmp_path: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    for name, text in {"model.py": MODEL, **files}.items():
        (tmp_path / name).write_text(dedent(text))
    return [(Path(f.path).name, f.code) for f in lint_paths([tmp_path]).findings]


@pytest.mark.parametrize(
    "handler",
    [
        "async def ask(request: Request, text: str):\n"
        "    service = request.app.state.rag\n    return await service.process(text)",
        "async def ask(text: str):\n    return await app.state.rag.process(text)",
        "async def ask(request: Request, text: str):\n"
        "    service = getattr(request.app.state, 'rag', None)\n    return await service.process(text)",
    ],
)
def test_what_app_state_holds(tmp_path: Path, handler: str) -> None:
    start = {"start.py": "from model import Rag\n\nasync def lifespan(app):\n    app.state.rag = Rag()\n"}
    app = {"app.py": f"{HEAD}import start\napp = FastAPI(lifespan=start.lifespan)\n\n@app.post('/ask')\n{handler}\n"}
    assert found(tmp_path, {**start, **app}) == [("app.py", "HU004")]


@pytest.mark.parametrize(
    "body",
    [
        # a global that another function sets
        "rag = None\n\ndef start():\n    global rag\n    rag = Rag()\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    return await rag.process(text)",
        # an annotation where it is assigned
        "found = {}\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    rag: Rag | None = found.get('rag')\n    return await rag.process(text)",
        # a parameter whose default is a function
        "async def ask_with(text, run=respond):\n    return await run(text)\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    return await ask_with(text)",
        # a method that is handed over, and a coroutine
        "async def timed(function, *given):\n    return await function(*given)\n\nrag = Rag()\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    return await timed(rag.process, text)",
        "async def timed(name, work):\n    return await work\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    return await timed('ask', respond(text))",
        # what a coroutine returns that is run, or awaited for a while
        "async def made():\n    return Rag()\n\nrag = asyncio.run(made())\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    return await rag.process(text)",
        "async def made():\n    return Rag()\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    rag = await asyncio.wait_for(made(), 5)\n    return await rag.process(text)",
    ],
)
def test_where_the_service_comes_from(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, {"app.py": f"{HEAD}import asyncio\napp = FastAPI()\n{body}\n"}) == [("app.py", "HU004")]


def test_what_a_dictionary_holds_may_be_anything(tmp_path: Path) -> None:
    body = (
        "async def ask(text: str, services: Dict = Depends(dict)):\n"
        "    rag = services.get('rag')\n    return await rag.process(text)"
    )
    assert found(tmp_path, {"app.py": f"{HEAD}app = FastAPI()\n\n@app.post('/ask')\n{body}\n"}) == [("app.py", "HU004")]


def test_a_value_that_is_named_like_a_method_is_no_function(tmp_path: Path) -> None:
    body = (
        "async def store(text):\n    ...\n\n@app.post('/ask')\nasync def ask(body: Body):\n    return await store(body.answer)"
    )
    assert found(tmp_path, {"app.py": f"{HEAD}app = FastAPI()\n{body}\n"}) == []


def test_a_wrapper_that_watches_the_client(tmp_path: Path) -> None:
    body = """
async def unless_gone(work, request):
    while not await request.is_disconnected():
        ...
    return await work

@app.post('/ask')
async def ask(request: Request, text: str):
    return await unless_gone(respond(text), request)
"""
    assert found(tmp_path, {"app.py": f"{HEAD}app = FastAPI()\n{body}"}) == []


def test_a_view_that_a_star_imports(tmp_path: Path) -> None:
    views = "from model import Rag\n\ndef ask(request):\n    return Rag().answer(request.text)\n"
    urls = "from django.urls import path\nfrom views import *\n\nurlpatterns = [path('ask', ask)]\n"
    assert found(tmp_path, {"views.py": views, "urls.py": urls}) == [("views.py", "HU004")]


def test_what_another_branch_returns_is_not_the_answer() -> None:
    source = """
        from flask import Flask, render_template, request
        from openai import OpenAI

        app = Flask(__name__)
        client = OpenAI()

        @app.post("/")
        def start():
            if request.is_json:
                text = client.chat.completions.create(model="m", messages=[], max_tokens=500)
                queue.put(text)
                return {answer}
            return render_template("index.html")
    """
    assert lint_source(dedent(source).replace("{answer}", "'ok'")) == []
    assert [f.code for f in lint_source(dedent(source).replace("{answer}", "text"))] == ["HU004"]


SYNC = """
    from flask import Flask, request
    {imports}

    app = Flask(__name__)

    @app.post("/ask")
    def ask():
        {call}
        return str(answer)
"""


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from ollama import Client; local = Client(host='h')", "answer = local.chat(model='m', messages=[])"),
        ("import cohere; co = cohere.ClientV2()", "answer = co.chat(model='m', messages=[])"),
        ("from litellm import Router; router = Router([])", "answer = router.completion(model='m', messages=[])"),
        ("import boto3; agents = boto3.client('bedrock-agent-runtime')", "answer = agents.invoke_agent(agentId='a')"),
        (
            "from transformers import AutoModel; import loaded",
            "answer, _ = loaded.model.chat(loaded.tokenizer, 'hi', history=[])",
        ),
        ("from openai import OpenAI; client = OpenAI()", "answer = client.beta.threads.runs.create_and_poll(thread_id='t')"),
        (
            "from openai import OpenAI; client = OpenAI()",
            "answer = client.beta.threads.runs.create(thread_id='t')\n"
            "    while answer.status != 'completed':\n"
            "        answer = client.beta.threads.runs.retrieve(thread_id='t', run_id=answer.id)",
        ),
        ("import requests", "answer = requests.post(request.url, json={'contents': [], 'generationConfig': {}})"),
        (
            "from openai import OpenAI; client = OpenAI() if KEY else None",
            "answer = client.responses.create(model='m', input='')",
        ),
        (
            "import requests",
            "answer = requests.post(f'https://g/v1/{request.model}:generateContent?key={KEY}', json=request.json)",
        ),
        ("from llama_index import load; index = load()", "answer = index.query(request.json)"),
        ("from transformers import pipeline; pipe = pipeline('text-generation')", "answer = pipe(request.json)"),
        ("import langgraph, graphs", "answer = [step for _, step in enumerate(graphs.agent_graph.stream({}))]"),
    ],
)
def test_calls_of_more_sdks(imports: str, call: str) -> None:
    assert [f.code for f in lint_source(dedent(SYNC).replace("{imports}", imports).replace("{call}", call))] == ["HU004"]


def test_a_pipeline_that_classifies_writes_no_text() -> None:
    source = dedent(SYNC).replace("{imports}", "from transformers import pipeline; pipe = pipeline('sentiment-analysis')")
    assert lint_source(source.replace("{call}", "answer = pipe(request.json)")) == []


def test_a_model_of_numbers_predicts_no_text() -> None:
    source = dedent(SYNC).replace("{call}", "answer = model.predict(request.json)")
    imports = "from langchain_openai import ChatOpenAI"
    assert [f.code for f in lint_source(source.replace("{imports}", imports))] == ["HU004"]
    assert lint_source(source.replace("{imports}", imports + "; import numpy as np")) == []


def test_a_thread_with_a_timeout_is_waited_for() -> None:
    source = """
        import asyncio
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI()

        def complete(text):
            return client.chat.completions.create(model="m", messages=[text], max_tokens=500)

        @app.post("/ask")
        async def ask(text: str):
            return await asyncio.wait_for(asyncio.to_thread(complete, text), timeout=30)
    """
    assert [f.code for f in lint_source(dedent(source))] == ["HU004"]


def test_a_stream_that_the_handler_reads_to_its_end() -> None:
    source = """
        from fastapi import FastAPI, WebSocket
        from langchain_openai import ChatOpenAI

        app = FastAPI()
        llm = ChatOpenAI()

        @app.post("/ask")
        async def ask(text: str):
            parts = []
            async for part in llm.astream(text):
                parts.append(part)
            return parts

        @app.websocket("/talk")
        async def talk(websocket: WebSocket):
            async for part in llm.astream(await websocket.receive_text()):
                await websocket.send_text(part)
    """
    assert [(f.code, f.line) for f in lint_source(dedent(source))] == [("HU004", 11)]


def test_a_health_check_blocks_only_for_a_word() -> None:
    source = """
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI()

        @app.get("{path}")
        async def {name}():
            return client.chat.completions.create(model="m", messages=[], max_tokens=1)
    """
    assert lint_source(dedent(source).format(path="/health/llm", name="check")) == []
    assert [f.code for f in lint_source(dedent(source).format(path="/ask", name="ask"))] == ["HU005"]


def test_files_without_inference_count_where_only_a_name_tells(tmp_path: Path) -> None:
    app = (
        f"{HEAD}import parts\nfrom typing import Any\napp = FastAPI()\n\n@app.post('/ask')\n"
        "async def ask(text: str):\n    processor = parts.found['processor']\n    return await processor.process(text)\n"
    )
    model = MODEL.replace("class Rag", "class QueryProcessor")
    other = "class {}Processor:\n    async def process(self, text):\n        return text\n"
    files = {"model.py": model, "app.py": app.replace("Rag, ", ""), "parts.py": "found = {}\n"}
    assert found(tmp_path, files) == [("app.py", "HU004")]
    others = {"pdf.py": other.format("Pdf"), "text.py": other.format("Text")}
    assert found(tmp_path, {**files, **others}) == []


@pytest.mark.parametrize(
    "lines",
    [
        "request = Request(f'{URL}/api/generate', data=json.dumps({'x': text}).encode())\n    with urlopen(request) as answer:",
        "with urlopen(Request(url=f'{URL}/v1/chat/completions', data=b'{}'), timeout=60) as answer:",
        "body = {'model': 'm', 'prompt': text, 'stream': False}\n    data = json.dumps(body).encode('utf-8')\n"
        "    made = Request(ADDRESS, data=data, method='POST')\n    with urlopen(made) as answer:",
    ],
)
def test_requests_of_the_standard_library(lines: str) -> None:
    source = """
        import json
        from fastapi import FastAPI
        from urllib.request import Request, urlopen

        app = FastAPI()

        @app.post("/ask")
        {kind}def ask(text: str):
            {lines}
                return json.load(answer)
    """

    def codes(kind: str, lines: str) -> list[str]:
        written = dedent(source).format(kind=kind, lines=lines)
        return [finding.code for finding in lint_source(written)]

    assert codes("", lines) == ["HU004"]
    assert codes("async ", lines) == ["HU005"]
    assert codes("", "with urlopen(Request(f'{URL}/api/tags', data=json.dumps({'text': text}).encode())) as answer:") == []
    assert codes("", "with urlopen(f'{URL}/health') as answer:") == []


@pytest.mark.parametrize("body", ["fitted('x', body)", "fitted('x', {'model': 'm', 'messages': [text]})"])
def test_a_body_that_a_function_changes(body: str) -> None:
    source = """
        import httpx
        from fastapi import FastAPI

        app = FastAPI()

        def fitted(provider, body):
            return {**body, "x": provider}

        @app.post("/ask")
        async def ask(text: str):
            body = {"model": "m", "messages": [text], "max_tokens": 500}
            sent = {body}
            return await httpx.AsyncClient().post(ADDRESS, json=sent)
    """
    assert [finding.code for finding in lint_source(dedent(source).replace("{body}", body))] == ["HU004"]
    assert lint_source(dedent(source).replace("{body}", "fitted('x', {'text': text})")) == []


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        ("{'model': 'm', 'messages': [text]}", ["HU004"]),
        ("{'messages': [text], 'to': 'everybody'}", []),
        ("dict(text=text)", []),
    ],
)
@pytest.mark.parametrize("call", ["call_api(body)", "call_api(content=body)"])
def test_a_body_that_another_function_sends(sent: str, codes: list[str], call: str) -> None:
    source = f"""
        import httpx
        from fastapi import FastAPI

        app = FastAPI()

        async def call_api(content):
            return await httpx.AsyncClient().post(ADDRESS, json=content)

        @app.post("/ask")
        async def ask(text: str):
            body = {sent}
            return await {call}
    """
    assert [finding.code for finding in lint_source(dedent(source))] == codes
    assert lint_source(dedent(source).replace("httpx.AsyncClient().post", "elsewhere")) == []

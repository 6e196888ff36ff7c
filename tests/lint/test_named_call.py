"""Which call of a handler is named: the one that most certainly runs the generation, not one that prepares it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

GATEWAY = """
    import httpx
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    client = httpx.AsyncClient()

    async def rpc(method, body):
        return await client.post(ADDRESS, json=body)

    async def refresh():
        return await client.post({address}, {body})

    async def resolve(name):
        return await rpc("list_agents", name)

    async def run(agent, text):
        return await rpc("run", text)

    @app.post("/v1/chat/completions")
    async def chat(text: str, model: str):
        {lines}
"""


def messages(source: str) -> list[str]:
    return [f"{f.code} {f.message}" for f in lint_source(dedent(source))]


def gateway(*lines: str, address: str = "ADDRESS", body: str = "json={}") -> list[str]:
    return messages(GATEWAY.format(lines="\n        ".join(lines), address=address, body=body))


def test_of_requests_to_unknown_addresses_the_last_is_named() -> None:
    (found,) = gateway("agent = await resolve(model)", "answer = await run(agent, text)", "return {'text': answer}")
    assert "`run`" in found


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("TOKEN_URL", "json={}"),
        ("'https://auth.example/oauth/token'", "json={}"),
        ("ADDRESS", "json={'grant_type': 'refresh_token', 'refresh_token': KEY}"),
        ("ADDRESS", "data={'client_secret': KEY}"),
        ("f'{BASE}/models'", "json={}"),
    ],
)
def test_a_request_for_a_token_or_a_list_is_no_inference(address: str, body: str) -> None:
    assert gateway("return await refresh()", address=address, body=body) == []
    assert gateway("return await refresh()") != []


def test_a_function_for_answers_without_a_stream_reads_the_stream_that_it_opens() -> None:
    source = """
        import httpx
        from fastapi import FastAPI

        app = FastAPI()
        client = httpx.AsyncClient()

        async def open_upstream(body):
            return await client.send(client.build_request("POST", ADDRESS, json=body), stream=True)

        async def serve_nonstream(body):
            upstream = await open_upstream(body)
            return await aggregate(upstream)

        @app.post("/v1/responses")
        async def responses(body: dict):
            return await serve_nonstream(body)
    """
    (found,) = messages(source)
    assert "`serve_nonstream`" in found
    assert messages(source.replace("serve_nonstream", "serve")) == []


MODEL = """
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
    from openai import AsyncOpenAI

    app = FastAPI()
    client = AsyncOpenAI()

    async def complete(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def suggest(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def classify_reply(text):
        return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)

    async def polish(text):
        return await complete(text)

    class Gateway:
        async def classify(self, text):
            return await complete(text)

    async def understand(text):
        known = KEYWORDS.get(text)
        if known:
            return known
        return await classify_reply(text)

    @app.post("/ask")
    async def ask(text: str, state: str):
        {lines}
"""


def model(*lines: str) -> list[str]:
    return messages(MODEL.format(lines="\n        ".join(lines)))


def test_a_call_that_is_always_made_is_named_before_one_in_a_branch() -> None:
    (found,) = model("if state == 'new':", "    text = await suggest(text)", "return await complete(text)")
    assert "`complete`" in found
    (found,) = model(
        "if state:",
        "    if text:",
        "        text = await suggest(text)",
        "    text = await complete(text)",
        "return {'text': text}",
    )
    assert "`complete`" in found
    (found,) = model("text = await suggest(text)", "return await complete(text)")
    assert "`suggest`" in found
    (found,) = model("if state:", "    return await suggest(text)", "return await polish(text)")
    assert "`polish`" in found


def test_a_call_that_only_classifies_is_no_generation() -> None:
    assert model("return await understand(text)") == []
    assert model("return await Gateway().classify(text)") == []
    (found,) = model("intent = await understand(text)", "if intent:", "    return await complete(text)", "return intent")
    assert "`complete`" in found


def test_what_a_branch_for_streams_calls_is_not_named() -> None:
    source = """
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from langchain_openai import ChatOpenAI

        app = FastAPI()

        @app.post("/ask")
        async def ask(body: Body):
            if body.stream:
                async def send(text):
                    return StreamingResponse(tokens(text))
                chain = wrap(send)
                return await chain(body.text)
            chain = wrap(answer)
            return await chain(body.text)
    """
    (found,) = lint_source(dedent(source))
    assert found.line == 16


def test_the_source_is_not_named_where_a_factory_chooses_the_class() -> None:
    source = """
        import os
        from flask import Flask
        from openai import OpenAI

        app = Flask(__name__)

        class Base:
            def ask(self, text): ...

        class One(Base):
            def ask(self, text):
                return OpenAI().chat.completions.create(model="one", messages=[text], max_tokens=500)

        class Two(Base):
            def ask(self, text):
                return OpenAI().chat.completions.create(model="two", messages=[text], max_tokens=500)

        def provider() -> Base:
            if os.getenv("PROVIDER", "two") == "one":
                return One()
            return Two()

        class Service:
            def __init__(self):
                self.provider = provider()

            def answer(self, text):
                return self.provider.ask(text)

        @app.post("/ask")
        def ask():
            return Service().answer("hello")
    """
    (found,) = messages(source)
    assert "chat.completions.create" not in found
    (found,) = messages(source.replace("return Two()", "raise ValueError"))
    assert "chat.completions.create" in found


@pytest.mark.parametrize(
    "line",
    [
        "return await loop.run_in_executor(None, lambda: client.chat.completions.create(model='m', messages=[text]))",
        "return await asyncio.to_thread(lambda: client.chat.completions.create(model='m', messages=[text]))",
    ],
)
def test_what_a_lambda_calls_stands_for_it(line: str) -> None:
    source = f"""
        import asyncio
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI()

        @app.post("/chat")
        async def chat(text: str):
            loop = asyncio.get_running_loop()
            {line}
    """
    assert messages(source) == ["HU004 `client.chat.completions.create` runs to its end even if the client disconnects"]


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("{'receive_id': text, 'msg_type': 'text', 'content': text}", 0),
        ("{'model': 'm', 'messages': [text], 'max_tokens': 500}", 1),
        ("{**defaults, 'content': text}", 1),
        ("payload", 1),
    ],
)
def test_messages_that_are_sent_to_somebody(body: str, number: int) -> None:
    source = """
        import httpx
        from fastapi import FastAPI

        app = FastAPI()
        client = httpx.AsyncClient()

        @app.post("/notes")
        async def note(text: str, payload: dict, defaults: dict):
            return (await client.post("https://api.example/im/v1/messages", json=BODY)).json()
    """
    assert len(messages(source.replace("BODY", body))) == number


def test_what_a_route_for_inference_calls_is_only_likely_if_no_model_was_seen_in_it() -> None:
    source = """
        from fastapi import FastAPI

        app = FastAPI()

        class Interviews:
            async def generate_interview(self, text):
                return ["Why do you want to work here?"]

        interviews = Interviews()

        @app.post("/generate")
        async def generate(text: str):
            return await interviews.generate_interview(text)
    """
    assert [f.certainty.name for f in lint_source(dedent(source))] == ["LIKELY"]
    unknown = source.replace("interviews = Interviews()", "from elsewhere import interviews")
    assert [f.certainty.name for f in lint_source(dedent(unknown))] == ["CERTAIN"]


def test_a_service_that_leads_to_no_model_is_only_likely_by_its_route(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from fastapi import Depends, FastAPI\nfrom interviews import Interviews\nfrom openai import AsyncOpenAI\n\n"
        "app = FastAPI()\nclient = AsyncOpenAI()\n\ndef provide() -> Interviews:\n    return Interviews()\n\n"
        "@app.post('/generate')\nasync def generate(text: str, interviews: Interviews = Depends(provide)):\n"
        "    return await interviews.generate_interview(text)\n\n"
        "@app.post('/ask')\nasync def ask(text: str):\n"
        "    return await client.chat.completions.create(model='m', messages=[text], max_tokens=500)\n"
    )
    (tmp_path / "interviews.py").write_text("class Interviews:\n    async def generate_interview(self, text): return [text]\n")
    report = lint_paths([tmp_path])
    assert ["chat.completions" in f.message for f in report.findings] == [True]
    assert report.likely == 1


@pytest.mark.parametrize("package", ["claude_agent_sdk", "claude_code_sdk"])
def test_an_agent_whose_messages_are_collected(package: str) -> None:
    source = """
        from fastapi import FastAPI
        from PACKAGE import query

        app = FastAPI()

        @app.post("/ask")
        async def ask(text: str):
            found = []
            async for message in query(prompt=text):
                found.append(message)
            return found
    """
    assert [message[:13] for message in messages(source.replace("PACKAGE", package))] == ["HU004 `query`"]


@pytest.mark.parametrize(
    ("made", "asked", "rule"),
    [
        ("Agent(model='m')", "agent(text)", "HU005"),
        ("Agent(model='m')", "await agent.invoke_async(text)", "HU004"),
        ("Pipeline()", "agent.run({'llm': {'messages': [text]}})", "HU005"),
        ("Helper(tools=[])", "agent.run(messages=[text])", "HU005"),
        ("Llama('model.gguf')", "agent(text)", "HU005"),
        ("AutoModelForCausalLM.from_pretrained('model')", "agent(text)", "HU005"),
        ("Llama('model.gguf')", "agent.tokenize(text)", ""),
        ("Store()", "agent(text)", ""),
    ],
)
def test_agents_of_strands_pipelines_of_haystack_and_local_models_run_when_they_are_called(
    made: str, asked: str, rule: str
) -> None:
    source = f"""
    from ctransformers import AutoModelForCausalLM
    from fastapi import FastAPI
    from haystack import Pipeline
    from haystack.components.agents import Agent as Helper
    from haystack.components.generators.chat import OpenAIChatGenerator
    from llama_cpp import Llama
    from stores import Store
    from strands import Agent

    app = FastAPI()

    @app.post("/ask")
    async def ask(text: str):
        agent = {made}
        return {asked}
    """
    assert [message[:5] for message in messages(source)] == [rule] * bool(rule)


def test_a_pipeline_of_haystack_without_a_model_runs_none() -> None:
    source = """
    from fastapi import FastAPI
    from haystack import Pipeline

    app = FastAPI()

    @app.post("/search")
    async def search(text: str):
        found = Pipeline()
        return found.run({"retriever": {"query": text}})
    """
    assert messages(source) == []


@pytest.mark.parametrize(("lines", "number"), [("", 1), ("    def llm(self, text):\n            return text", 0)])
def test_a_model_of_an_instance_is_called_itself(lines: str, number: int) -> None:
    source = f"""
    from fastapi import FastAPI
    from langchain_openai import OpenAI

    app = FastAPI()

    class Cook:
        def recipe(self, text):
            answer = self.llm(text)
            return answer

    {lines}

    @app.post("/ask")
    def ask(text: str):
        return Cook().recipe(text)
    """
    assert len(messages(source)) == number


def test_of_two_that_are_as_certain_the_nearer_to_the_model_is_named() -> None:
    (found,) = messages("""
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()

        async def near(text):
            return await AsyncOpenAI().responses.create(model="m", input=text)

        async def far(text):
            return await near(text)

        @app.post("/items")
        async def post(text: str):
            one = await far(text)
            other = await near(text)
            return {"one": one, "other": other}
    """)
    assert "`near`" in found

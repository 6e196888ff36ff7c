"""Functions that a platform calls for a request; and calls that are, or are not, those of a model by what they are given."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

CLIENT = "from openai import AsyncOpenAI, OpenAI\n\nclient, blocking = AsyncOpenAI(), OpenAI()\n"
ASK = "client.chat.completions.create(model='m', messages=[payload])"


def codes(source: str) -> list[str]:
    return [finding.code for finding in lint_source(dedent(source))]


def entry(imported: str, decorator: str, call: str, *, is_async: bool) -> str:
    head = f"{'async ' * is_async}def ask(payload):"
    return f"{imported}\n{CLIENT}\n{decorator}\n{head}\n    made = {call}\n    return made.choices\n"


@pytest.mark.parametrize(
    ("decorator", "number"), [("@functions_framework.http", 1), ("@functions_framework.cloud_event", 0), ("@other.http", 0)]
)
def test_a_function_of_functions_framework(decorator: str, number: int) -> None:
    source = entry("import functions_framework", decorator, ASK.replace("client", "blocking"), is_async=False)
    assert codes(source) == ["HU004"] * number


@pytest.mark.parametrize(
    ("imported", "number"),
    [
        ("from bedrock_agentcore import BedrockAgentCoreApp\n\napp = BedrockAgentCoreApp()", 1),
        ("from elsewhere import App\n\napp = App()", 0),
    ],
)
def test_an_entry_point_of_bedrock_agentcore(imported: str, number: int) -> None:
    assert codes(entry(imported, "@app.entrypoint", f"await {ASK}", is_async=True)) == ["HU004"] * number
    blocking = entry(imported, "@app.entrypoint", ASK.replace("client", "blocking"), is_async=True)
    assert codes(blocking) == ["HU005"] * number


@pytest.mark.parametrize(
    ("body", "number"),
    [('{"contents": [{"parts": [{"text": text}]}]}', 1), ('{"contents": [text]}', 0), ('{"parts": [{"text": text}]}', 0)],
)
def test_the_body_of_a_request_to_gemini(body: str, number: int) -> None:
    source = f"""
        import httpx
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/dreams")
        async def ask(text: str):
            async with httpx.AsyncClient() as client:
                answer = await client.post(address(), json={body})
            return answer.json()
    """
    assert codes(source) == ["HU004"] * number


@pytest.mark.parametrize(("given", "number"), [("tool_args or {}", 0), ("{'question': tool_input}", 0), ("question", 1)])
def test_what_is_given_the_arguments_of_a_tool_is_no_model(given: str, number: int) -> None:
    source = f"""
        from fastapi import FastAPI
        from langchain_openai import ChatOpenAI

        app = FastAPI()

        @app.post("/accounts")
        async def accounts(question: str):
            matched = find(question)
            found = await matched.ainvoke({given})
            return found
    """
    assert codes(source) == ["HU004"] * number


@pytest.mark.parametrize(("name", "number"), [("answer_chain", 1), ("AnswerChain", 0)])
def test_to_make_an_object_of_a_class_is_no_inference(name: str, number: int) -> None:
    source = f"""
        from fastapi import FastAPI
        from langchain_core.messages import AIMessage
        from elsewhere import {name} as given

        app = FastAPI()
        {name} = given

        @app.post("/ask")
        def ask(question: str):
            answer = {name}(question)
            return answer
    """
    assert codes(source) == ["HU004"] * number


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        ('@app.post("/ask")', '@app.post("/ask")', 0),
        ('@app.post("/ask", tags=["a"])', '@app.post("/ask", response_model=Answer)', 0),
        ('@app.post("/ask")', '@app.get("/ask")', 1),
        ('@app.post("/ask")', '@app.post("/ask/{id}")', 1),
        ('@app.post("/ask")', '@other.post("/ask")', 1),
        ('@app.post("/ask")', '@app.post("/ask")\n@app.post("/question")', 1),
        ('@app.api_route("/ask", methods=["PUT"])', '@app.api_route("/ask", methods=["POST"])', 1),
    ],
)
def test_a_handler_whose_route_another_one_has_serves_nobody(first: str, second: str, number: int) -> None:
    head = f"from fastapi import FastAPI\n{CLIENT}\napp, other = FastAPI(), FastAPI()\n"
    answer = "async def answer(payload: str):\n    made = await client.chat.completions.create(model='m', messages=[payload])"
    source = f"{head}\n{first}\ndef early(payload: str):\n    return {{}}\n\n{second}\n{answer}\n    return made\n"
    assert codes(source) == ["HU004"] * number


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("post_with_retry(url='https://openrouter.ai/api/v1/chat/completions', body=text)", 1),
        ("post_with_retry(session, f'{BASE}/v1/chat/completions', text)", 1),
        ("post_with_retry('https://shop.example/v1/orders', text)", 0),
        ("describe('https://openrouter.ai/api/v1/chat/completions', text)", 0),
    ],
)
def test_a_function_that_sends_a_request_to_an_api_of_inference(call: str, number: int) -> None:
    source = f"""
        from fastapi import FastAPI
        from elsewhere import describe, post_with_retry, session, BASE

        app = FastAPI()

        @app.post("/dreams")
        async def dream(text: str):
            answer = await {call}
            return answer
    """
    assert codes(source) == ["HU004"] * number


@pytest.mark.parametrize(("route", "codes_found"), [("query", ["HU004"]), ("health", [])])
@pytest.mark.parametrize("is_async", [False, True])
def test_functions_of_azure(route: str, codes_found: list[str], *, is_async: bool) -> None:
    call = f"await {ASK}" if is_async else ASK.replace("client", "blocking")
    made = "import azure.functions as func\napp = func.FunctionApp()"
    source = entry(made, f'@app.route(route="{route}", methods=["POST"])', call, is_async=is_async)
    assert codes(source.replace("ask(", "handle(")) == codes_found
    assert codes(source.replace("ask(", "handle(").replace("@app.route(route=", "@app.timer_trigger(schedule=")) == []


VIEWS = """
    from openai import OpenAI
    from rest_framework.views import APIView

    class {name}(APIView):
        def post(self, request):
            return OpenAI().responses.create(model="m", input=request.data)
"""
URLS = "from django.urls import path\nfrom views import Ask\nurlpatterns = [path('ask', Ask.as_view())]\n"


@pytest.mark.parametrize(("name", "found"), [("Ask", 1), ("Tried", 0)])
def test_a_view_that_no_table_of_routes_names(tmp_path: Path, name: str, found: int) -> None:
    (tmp_path / "views.py").write_text(dedent(VIEWS.format(name=name)))
    assert len(lint_paths([tmp_path]).findings) == 1, "without a table, any may be served"
    (tmp_path / "urls.py").write_text(URLS)
    assert len(lint_paths([tmp_path]).findings) == found
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "views.py").write_text(dedent(VIEWS.format(name=name)))
    assert len(lint_paths([tmp_path]).findings) == found * 2, "a copy is no use of it"


@pytest.mark.parametrize(
    ("registered", "found"),
    [
        ('app.add_api_route("/ask", answer, methods=["POST"])', ["certain"]),
        ('app.router.routes += [Route(path, answer) for path in ("/ask", "/v1/ask")]', ["certain"]),
        ("app.router.routes += [Route(path, answer) for path in PATHS]", ["certain"]),
        ("app.add_api_route(PREFIX, answer)", ["likely"]),
        ('app.add_api_route("/debug/run", answer)', ["likely"]),
        ('app.add_api_route("/webhooks/github", answer)', []),
    ],
)
def test_the_path_of_a_handler_that_a_call_registers(registered: str, found: list[str]) -> None:
    source = f"""
        from fastapi import FastAPI
        from starlette.routing import Route
        from openai import OpenAI

        app = FastAPI()
        PATHS = ["/ask", "/v1/ask"]

        def answer(text: str):
            reply = OpenAI().responses.create(model="m", input=text)
            store.save(reply)
            return reply

        {registered}
    """
    assert [f.certainty for f in lint_source(dedent(source))] == found


@pytest.mark.parametrize(
    ("package", "name", "found"),
    [("a2a", "execute", ["HU005"]), ("a2a", "cancel", []), ("langchain", "execute", [])],
)
def test_an_executor_of_a2a_shares_the_loop_of_its_server(package: str, name: str, found: list[str]) -> None:
    source = f"""
        from {package}.server.agent_execution import AgentExecutor
        from openai import OpenAI

        class Executor(AgentExecutor):
            async def {name}(self, context, events):
                reply = OpenAI().responses.create(model="m", input=context.message)
                await events.enqueue_event(reply.output_text)
    """
    assert codes(source) == found


@pytest.mark.parametrize(
    ("decorator", "found"),
    [
        ('@socketio.on("message")', ["HU004"]),
        ("@socketio.event", ["HU004"]),
        ('@socketio.on("disconnect")', []),
        ('@events.on("message")', []),
    ],
)
def test_an_event_of_socket_io(tmp_path: Path, decorator: str, found: list[str]) -> None:
    source = f"""
        from flask_socketio import SocketIO, emit
        from openai import OpenAI

        socketio = SocketIO()

        {decorator}
        def answer(data):
            reply = OpenAI().responses.create(model="m", input=data)
            emit("answer", reply.output_text)
    """
    (tmp_path / "app.py").write_text(dedent(source))
    assert [f.code for f in lint_paths([tmp_path]).findings] == found


@pytest.mark.parametrize(("wait", "found"), [("runs.create_and_poll(thread_id=other)", ["HU004"]), ("runs.create()", [])])
def test_an_assistant_answers_in_its_thread(wait: str, found: list[str]) -> None:
    source = f"""
        from flask import Flask
        from openai import OpenAI

        app = Flask(__name__)
        client = OpenAI()

        @app.post("/ask")
        def ask():
            run = client.beta.threads.{wait}
            return client.beta.threads.messages.list(thread_id=run.thread).data[0].text
    """
    assert codes(source.replace("run.thread", "other")) == found

"""What is handed over and run elsewhere: methods of an SDK, lambdas, classes, functions of a dictionary, and protocols."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hangup.lint import lint_source
from hangup.lint.run import lint_paths

HEAD = """
    import asyncio
    import anthropic
    import fastapi
    from openai import AsyncOpenAI, OpenAI

    app = fastapi.FastAPI()
    client = AsyncOpenAI()
    blocking = OpenAI()
    claude = anthropic.AsyncAnthropic()

    async def work(text):
        return await client.chat.completions.create(model="m", messages=[text])

    async def fetch(text):
        return text
"""


def found(source: str) -> list[str]:
    return [f"{f.code} {f.certainty}" for f in lint_source(dedent(HEAD) + dedent(source))]


@pytest.mark.parametrize(
    "line",
    [
        'return call(blocking.chat.completions.create, model="m", messages=[text])',
        'made = self.breaker.call(blocking.chat.completions.create, model="m", messages=[text])\n        return made',
    ],
)
def test_a_function_runs_the_method_of_an_sdk_that_it_is_given(line: str) -> None:
    source = f"""
    @app.post("/ask")
    def ask(text: str):
        {line}
    """
    assert found(source) == ["HU004 certain"]


@pytest.mark.parametrize(
    "line",
    [
        'later = partial(blocking.chat.completions.create, model="m", messages=[text])',
        'pool.submit(blocking.chat.completions.create, model="m", messages=[text])',
        "register(blocking.chat.completions.create)",
        'post(blocking.files.create, input="m")',
    ],
)
def test_a_method_that_is_only_held_is_not_run(line: str) -> None:
    source = f"""
    @app.post("/ask")
    def ask(text: str):
        {line}
        return text
    """
    assert found(source) == []


def test_a_thread_is_given_a_method_with_its_arguments() -> None:
    source = """
    @app.post("/ask")
    async def ask(text: str):
        return await asyncio.to_thread(sync_claude.messages.create, model="m", max_tokens=500, messages=[text])
    """
    assert found(source) == ["HU004 certain"]


@pytest.mark.parametrize(("called", "findings"), [("work", ["HU004 certain"]), ("fetch", [])])
def test_an_awaited_call_runs_the_lambda_that_it_is_given(called: str, findings: list[str]) -> None:
    source = f"""
    @app.post("/ask")
    async def ask(text: str):
        return await with_retry(lambda: {called}(text), attempts=2)
    """
    assert found(source) == findings


@pytest.mark.parametrize(
    ("given", "findings"),
    [("service=work", ["HU004 certain"]), ("service=fetch", []), ("text=text", []), ("service=elsewhere", [])],
)
def test_an_awaited_call_runs_the_function_that_it_is_given_by_a_keyword(given: str, findings: list[str]) -> None:
    source = f"""
    @app.post("/ask")
    async def ask(text: str):
        return await run_tool(name="ask", {given})
    """
    assert found(source) == findings


@pytest.mark.parametrize("given", ["type[Workflow]", "Type[Workflow]"])
def test_a_class_that_is_given_makes_an_instance(given: str) -> None:
    source = f"""
    class Workflow:
        async def run(self, text):
            return await work(text)

    async def start(made_by: {given}, text):
        return await made_by(limit=5).run(text)

    @app.post("/ask")
    async def ask(text: str):
        return await start(Workflow, text)
    """
    assert found(source) == ["HU004 certain"]


def test_a_generic_class_is_named_by_its_annotation() -> None:
    source = """
    from pydantic_ai import Agent as Helper

    @app.post("/ask")
    async def ask(text: str, helper: Helper[None, str] = fastapi.Depends(get_helper)):
        return await helper.run(text)
    """
    assert found(source) == ["HU004 certain"]


def test_containers_are_not_what_they_hold() -> None:
    source = """
    class Helper:
        async def run(self, text):
            return await work(text)

    @app.post("/ask")
    async def ask(text: str, found: list[Helper]):
        return await found.run(text)
    """
    assert found(source) == []


@pytest.mark.parametrize(
    "lines",
    [
        "return await PROVIDERS[name](text)",
        "run = PROVIDERS[name]\n        return await run(text)",
        "run = PROVIDERS.get(name)\n        return await run(text)",
    ],
)
@pytest.mark.parametrize(("held", "findings"), [("work", ["HU004 certain"]), ("fetch", [])])
def test_a_dictionary_holds_functions(lines: str, held: str, findings: list[str]) -> None:
    source = f"""
    PROVIDERS = {{"one": {held}, "two": {held}}}

    @app.post("/ask")
    async def ask(text: str, name: str):
        {lines}
    """
    assert found(source) == findings


def test_which_of_its_functions_a_dictionary_gives_is_not_said() -> None:
    source = """
    PROVIDERS = {"one": work, "two": work}

    async def answer(name, text):
        run = PROVIDERS[name]
        return await run(text)

    @app.post("/ask")
    async def ask(text: str, name: str):
        return await answer(name, text)
    """
    (finding,) = lint_source(dedent(HEAD) + dedent(source))
    assert finding.message == "`answer` runs to its end even if the client disconnects"


@pytest.mark.parametrize(
    ("call", "findings"),
    [
        ("claude.messages.create(**arguments)", ["HU004 certain"]),
        ("claude.beta.threads.messages.create(**arguments)", []),
        ("claude.messages.create(text, **arguments)", []),
    ],
)
def test_messages_of_anthropic_whose_arguments_are_made_elsewhere(call: str, findings: list[str]) -> None:
    source = f"""
    @app.post("/ask")
    async def ask(text: str):
        arguments = arguments_for(text)
        return await {call}
    """
    assert found(source) == findings


@pytest.mark.parametrize(
    ("lines", "findings"),
    [
        ("return made.choices[0].message.content", ["HU005 certain"]),
        ('return made["choices"]', ["HU005 certain"]),
        ("return (await made).choices", []),
        ("made = await made\n        return made.choices", []),
        ("return StreamingResponse(made)", []),
    ],
)
def test_an_answer_that_is_read_without_await_was_waited_for(lines: str, findings: list[str]) -> None:
    source = f"""
    @app.post("/ask")
    async def ask(text: str):
        made = get_client().chat.completions.create(model="m", messages=[text])
        {lines}
    """
    assert [level for level in found(source) if "HU005" in level] == findings


@pytest.mark.parametrize(("entered", "findings"), [("with", ["HU005 certain"]), ("async with", [])])
def test_a_stream_that_is_entered_without_async_blocks(entered: str, findings: list[str]) -> None:
    source = f"""
    @app.post("/ask")
    async def ask(text: str):
        async def events():
            {entered} get_client().messages.stream(model="m", max_tokens=500, messages=[text]) as stream:
                {"async " if entered == "async with" else ""}for part in stream:
                    yield part
        return fastapi.responses.StreamingResponse(events())
    """
    assert [level for level in found(source) if "HU005" in level] == findings


PROTOCOL = {
    "engine.py": """
        from openai import AsyncOpenAI

        class OpenAIEngine:
            def __init__(self):
                self.openai = AsyncOpenAI()

            async def compose(self, text):
                return await self.openai.chat.completions.create(model="m", messages=[text])
    """,
    "letters.py": """
        from typing import Protocol

        class Engine(Protocol):
            async def compose(self, text): ...

        class Letters:
            def __init__(self, engine: Engine):
                self.engine = engine

            async def draft(self, text):
                return await self.engine.compose(text)
    """,
    "container.py": """
        from engine import OpenAIEngine
        from letters import Letters

        def get_letters() -> Letters:
            return Letters(OpenAIEngine())
    """,
    "app.py": """
        from fastapi import Depends, FastAPI
        from container import get_letters
        from letters import Letters

        app = FastAPI()

        @app.post("/letters")
        async def post(text: str, letters: Letters = Depends(get_letters)):
            return await letters.draft(text)
    """,
}


def test_what_a_protocol_stands_for_is_put_together_elsewhere(tmp_path: Path) -> None:
    for name, text in PROTOCOL.items():
        (tmp_path / name).write_text(dedent(text))
    assert [(Path(f.path).name, f.code) for f in lint_paths([tmp_path]).findings] == [("app.py", "HU004")]


def test_of_several_calls_that_of_the_model_is_named() -> None:
    source = """
    async def answer_before(text):
        return await work(text)

    @app.post("/ask")
    async def ask(text: str):
        before = await answer_before(text)
        made = await client.chat.completions.create(model="m", messages=[before])
        return before, made
    """
    (finding,) = lint_source(dedent(HEAD) + dedent(source))
    assert finding.message.startswith("`client.chat.completions.create` runs to its end")


GUARDED = """
    def answer(text):
        return blocking.chat.completions.create(model="m", messages=[text])

    def guarded(function, *arguments):
        try:
            {body}
        except ValueError:
            return ""

    @app.post("/ask")
    def ask(text: str):
        return guarded({given}, text)
"""


def test_a_function_runs_the_function_that_it_is_given() -> None:
    assert found(GUARDED.format(body="return function(*arguments)", given="answer")) == ["HU004 certain"]


@pytest.mark.parametrize(
    ("body", "given"),
    [("return len(arguments)", "answer"), ("return function(*arguments)", "print"), ("return arguments[0]()", "answer")],
)
def test_a_function_that_is_only_given_is_not_run(body: str, given: str) -> None:
    assert found(GUARDED.format(body=body, given=given)) == []


@pytest.mark.parametrize(
    ("call", "findings"),
    [
        ("call_llm(text)", ["HU004 certain"]),
        ("llm_generate(prompt=text)", ["HU004 certain"]),
        ("llm(text)", ["HU004 certain"]),
        ("llm()", []),  # which makes one
        ("llm_factory(text)", []),
        ("on_llm_end(text)", []),
    ],
)
def test_a_function_that_is_given_under_the_name_of_a_model(call: str, findings: list[str]) -> None:
    source = f"""
    async def answer(text, {call.partition("(")[0]}):
        found = await {call}
        return found

    @app.post("/ask")
    async def ask(text: str):
        return await answer(text, registry[text])
    """
    assert found(source) == findings
    assert found(source.replace("async def answer(text, ", "async def answer(text, _")) == []  # it is no parameter


MAKER = """
    def make(style):
        async def answer(text):
            return await work(style + text)
        return {returned}

    class Kitchen:
        def make(self, style):
            async def cook(text):
                return await work(style + text)
            return cook
"""


@pytest.mark.parametrize(
    ("returned", "lines", "findings"),
    [
        ("answer", "run = make('short')\n        return await run(text)", ["HU004 certain"]),
        ("answer", "return await make('short')(text)", ["HU004 certain"]),
        ("answer", "return await Kitchen().make('short')(text)", ["HU004 certain"]),
        ("answer", "run = Kitchen().make('short')\n        return await run(text)", ["HU004 certain"]),
        ("answer", "return await asyncio.gather(make('short')(text))", ["HU004 certain"]),
        ("answer", "run = make('short')\n        return await fetch(text)", []),
        ("fetch", "return await make('short')(text)", []),
        ("answer", "made = make('short')\n        return await made.later(text)", []),
    ],
)
def test_a_function_that_another_one_makes(returned: str, lines: str, findings: list[str]) -> None:
    source = (
        MAKER.format(returned=returned)
        + f"""
    @app.post("/ask")
    async def ask(text: str):
        {lines}
    """
    )
    assert found(source) == findings


def test_a_function_that_one_of_another_module_makes(tmp_path: Path) -> None:
    maker = dedent(HEAD).replace("app = fastapi.FastAPI()", "") + dedent(MAKER.format(returned="answer"))
    (tmp_path / "maker.py").write_text(maker)
    (tmp_path / "app.py").write_text(
        "import fastapi\nfrom maker import make as made_by\n\napp = fastapi.FastAPI()\n\n"
        "@app.post('/ask')\nasync def ask(text: str):\n    run = made_by('short')\n    return await run(text)\n"
    )
    assert [(Path(f.path).name, f.certainty) for f in lint_paths([tmp_path]).findings] == [("app.py", "certain")]

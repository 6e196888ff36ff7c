"""Calls that do not run the function that they name: it takes no such arguments, or nobody awaits what it returns."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import lint_source

SERVICE = """
import asyncio
import fastapi
from openai import OpenAI

app = fastapi.FastAPI()
client = OpenAI()

def ask(text, limit=5, *, style="plain"):
    return client.chat.completions.create(model="m", messages=[text])

def anything(text, **options):
    return client.chat.completions.create(model="m", messages=[text])

def many(text, *others):
    return client.chat.completions.create(model="m", messages=[text])

@with_files
def wrapped(text):
    return client.chat.completions.create(model="m", messages=[text])

class Service:
    def ask(self, text, limit=5):
        return client.chat.completions.create(model="m", messages=[text])

    @staticmethod
    def tell(text):
        return client.chat.completions.create(model="m", messages=[text])

class Base:
    def run(self, text):
        return self.generate(text, limit=5)

    def generate(self, text):
        return client.chat.completions.create(model="m", messages=[text])
{more}

@app.post("/ask")
def post(text: str):
    return {call}
"""


def findings(call: str, more: str = "") -> int:
    return len(lint_source(SERVICE.format(call=call, more=more)))


@pytest.mark.parametrize(
    "call",
    [
        "ask(text, files=[])",
        "ask(text, 5, 'plain')",
        "ask(text, text=text)",
        "many(text, files=[])",
        "anything(text, 5)",
        "Service().ask(text, files=[])",
        "Service().ask(text, 5, 6)",
        "Service().ask(text, text=text)",
        "Base().run(text)",
    ],
)
def test_a_call_that_gives_what_nothing_takes_raises(call: str) -> None:
    assert findings(call) == 0


@pytest.mark.parametrize(
    "call",
    [
        "ask(text, 5, style='plain')",
        "ask(limit=5, text=text)",
        "ask(text, *[5, 6])",
        "ask(text, **{'style': 'plain'})",
        "many(text, 5, 6, 7)",
        "anything(text, files=[])",
        "wrapped(text, files=[])",
        "Service().ask(text, 5)",
        "Service.ask(Service(), text, 5)",
        "Service.tell(text)",
    ],
)
def test_a_call_that_the_function_may_take_is_made(call: str) -> None:
    assert findings(call) == 1


def test_a_class_below_may_take_more() -> None:
    below = """
class Between(Base):
    pass

class Below(Between):
    def generate(self, text, limit=1):
        return client.chat.completions.create(model="m", messages=[text])
"""
    assert findings("Base().run(text)", below) == 1


@pytest.mark.parametrize(
    "more",
    [
        "if fastapi:\n    def ask(text, files):\n        return client.chat.completions.create(model='m', messages=[text])",
        "ask = with_files(ask)",
    ],
)
def test_a_function_that_is_defined_again_may_take_something_else(more: str) -> None:
    assert findings("ask(text, files=[])", more) == 1


COROUTINE = """
import asyncio
import fastapi
from openai import OpenAI

app = fastapi.FastAPI()
client = OpenAI()

{decorator}
async def answer(text):
    return client.chat.completions.create(model="m", messages=[text])

{more}

@app.post("/ask")
async def ask(text: str):
    {body}
"""


def blocking(body: str, more: str = "", decorator: str = "") -> list[str]:
    return [f.code for f in lint_source(dedent(COROUTINE).format(body=body, more=more, decorator=decorator))]


@pytest.mark.parametrize("body", ["return answer(text)", "answer(text)\n    return {}"])
def test_a_coroutine_that_nobody_awaits_never_runs(body: str) -> None:
    assert blocking(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "return await answer(text)",
        "made = answer(text)\n    return await made",
        "return await asyncio.gather(answer(text))",
        "return await asyncio.wait_for(answer(text), 5)",
        "return await passing(text)",
        "return await (await handing(text))",
    ],
)
def test_a_coroutine_that_somebody_may_await_runs(body: str) -> None:
    more = "def passing(text):\n    return answer(text)\n\nasync def handing(text):\n    return answer(text)"
    assert blocking(body, more) == ["HU005"]


def test_a_decorator_may_run_the_coroutine() -> None:
    assert blocking("return answer(text)", decorator="@runs_in_a_loop") == ["HU005"]


def test_a_framework_that_awaits_what_a_handler_returns() -> None:
    source = """
    import tornado.web
    from openai import OpenAI

    client = OpenAI()

    async def answer(text):
        return client.chat.completions.create(model="m", messages=[text])

    class Ask(tornado.web.RequestHandler):
        async def post(self):
            return answer(self.text)
    """
    assert [f.code for f in lint_source(dedent(source))] == ["HU005"]

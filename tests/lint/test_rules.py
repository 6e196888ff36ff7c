"""Every rule finds its own bad example and nothing else, and accepts the good one."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import RULES, lint_source

ALL = list(RULES)


def codes(source: str) -> list[str]:
    return [finding.code for finding in lint_source(dedent(source), codes=ALL)]


@pytest.mark.parametrize("code", RULES)
def test_bad_example_is_found_by_this_rule_alone(code: str) -> None:
    assert set(codes(RULES[code].bad)) == {code}


@pytest.mark.parametrize("code", RULES)
def test_good_example_is_clean(code: str) -> None:
    assert codes(RULES[code].good) == []


def test_rules_are_numbered_without_gaps_and_have_distinct_names() -> None:
    assert list(RULES) == [f"HU{number:03}" for number in range(1, len(RULES) + 1)]
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


# What the field test taught: each of these was a false positive or a miss once.


def test_waiting_for_a_task_that_was_cancelled_eats_nothing() -> None:
    source = """
        async def stop_soon(task):
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            await report()
    """
    assert codes(source) == []


def test_a_close_that_must_not_fail_eats_nothing() -> None:
    source = """
        async def pump(stream):
            try:
                async for part in stream:
                    await forward(part)
            finally:
                try:
                    await stream.aclose()
                except BaseException:
                    pass
    """
    assert codes(source) == []


def test_an_error_that_is_handed_on_is_not_eaten() -> None:
    source = """
        async def work(future, job):
            try:
                future.set_result(await job())
            except BaseException as error:
                future.set_exception(error)
    """
    assert codes(source) == []


def test_cancelled_error_in_a_loop_that_goes_on_is_eaten() -> None:
    source = """
        import asyncio

        async def work(jobs):
            while True:
                job = await jobs.get()
                try:
                    await job()
                except (asyncio.CancelledError, ValueError):
                    print("next")
    """
    assert codes(source) == ["HU008"]


def test_a_task_group_owns_its_tasks() -> None:
    source = """
        import asyncio

        async def answer(engine, prompt):
            async with asyncio.TaskGroup() as tg:
                tg.create_task(engine.generate(prompt))
    """
    assert codes(source) == []


def test_imports_are_followed_under_other_names() -> None:
    source = """
        from asyncio import create_task as spawn, shield as keep

        async def answer(engine, prompt):
            spawn(engine.abort(prompt))
            return await keep(engine.generate(prompt))
    """
    assert sorted(codes(source)) == ["HU002", "HU009"]


def test_inference_is_followed_through_functions_of_the_module() -> None:
    source = """
        import asyncio

        async def ask(llm, prompt):
            return await llm.ainvoke(prompt)

        async def relay(llm, prompt):
            return await ask(llm, prompt)

        async def start(llm, prompt):
            asyncio.create_task(relay(llm, prompt))
    """
    assert codes(source) == ["HU002"]


def test_a_blocking_call_that_is_handed_to_a_thread_is_fine() -> None:
    source = """
        import asyncio
        from openai import OpenAI

        client = OpenAI(timeout=60)

        async def answer(messages):
            return await asyncio.to_thread(client.chat.completions.create, model="m", messages=messages, max_tokens=5)
    """
    assert codes(source) == []


def test_a_mocked_answer_is_no_inference() -> None:
    source = """
        import litellm

        async def health():
            await litellm.acompletion(model="m", messages=[], mock_response="ok")
    """
    assert codes(source) == []


def test_a_stream_that_somebody_else_was_given_is_theirs_to_close() -> None:
    source = """
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse

        app = FastAPI()

        @app.post("/generate")
        async def generate(prompt: str, engine):
            results = engine.generate(prompt)

            async def tokens():
                async for result in results:
                    yield result.text

            return StreamingResponse(with_cleanup(tokens(), results))
    """
    assert codes(source) == []
    assert codes(source.replace("with_cleanup(tokens(), results)", "tokens()")) == ["HU003"]


def test_a_shielded_scope_around_inference() -> None:
    source = """
        import anyio

        async def answer(engine, prompt):
            with anyio.CancelScope(shield=True):
                return await engine.generate(prompt)
    """
    assert codes(source) == ["HU009"]


def test_an_endless_retry_loop() -> None:
    source = """
        import asyncio

        async def answer(llm, prompt):
            while True:
                try:
                    return await llm.ainvoke(prompt)
                except Exception:
                    await asyncio.sleep(1)
    """
    assert codes(source) == ["HU012"]
    assert codes(source.replace("while True", "for _ in range(3)")) == []


def test_a_stream_of_one_chunk() -> None:
    source = """
        from fastapi.responses import StreamingResponse

        async def answer(llm, prompt):
            text = await llm.ainvoke(prompt)
            return StreamingResponse(iter([text]))
    """
    assert codes(source) == ["HU014"]


def test_litestar_and_aiohttp_handlers_are_handlers() -> None:
    source = """
        from litestar import post

        @post("/chat")
        async def chat(data: dict, llm: object) -> str:
            return await llm.ainvoke(data)
    """
    assert codes(source) == ["HU004"]
    source = """
        from aiohttp import web

        async def chat(request: web.Request) -> web.Response:
            return web.json_response(await request.app["llm"].acomplete("hi"))
    """
    assert codes(source) == ["HU004"]

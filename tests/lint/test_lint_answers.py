"""HU004 and what becomes of a generation: part of the answer, stored, sent elsewhere, streamed, or passed on by a function."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangup.lint import RULES, lint_source

ALL = list(RULES)


def codes(source: str) -> list[str]:
    return [finding.code for finding in lint_source(dedent(source), codes=ALL)]


ANSWER = """
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse, RedirectResponse
    from openai import AsyncOpenAI

    app = FastAPI()
    client = AsyncOpenAI()

    async def ask(text):
        return await client.chat.completions.create(model="m", messages=[], max_tokens=500)

    @app.post("/answer")
    async def answer(request: Request, text: str, other: str, rows: list, store: object):
        {body}
"""


@pytest.mark.parametrize(
    "body",
    [
        "reply = await ask(text); await store.send(other, reply); return {'status': 'ok'}",
        "reply = await ask(text); store.save(reply); return JSONResponse({'ok': True}, status_code=202)",
        "reply = await ask(text); await rows[0].save(reply); return Response(status_code=200)",
        "await ask(text); return {'rows': len(rows)}",
        "reply = await ask(text); store.put(reply); number = len(rows); return {'number': number}",
        "reply = await ask(text); store.save(reply); return RedirectResponse('/chat')",
        "if store.ok():\n            await ask(store)\n            return redirect('chat', chat_id=store.id)",
        "reply = await ask(text); save(chat_id, reply); return redirect(f'/chat/{{chat_id}}')",
        "reply = await ask(text); store.save(reply); return render(request, 'chat.html', {'all': [], 'text': text})",
        "kind = request.GET.get('kind'); store.save(await ask(text)); return render(request, 'chat.html', {'kind': kind})",
        "reply = await ask(text); return {'id': reply.made, 'title': reply.title, 'word_count': reply.words}",
        "reply = await ask(text); return {'pending_id': other, 'message': f'Generated {reply.title}'}",
        "with open(other, 'w') as file:\n            file.write(await ask(text))\n        return {'file': other}",
        "reply = await ask(text); row_ids = store.save(reply); return {'made': row_ids, 'number': len(row_ids)}",
        "reply = await ask(text); return Made(document_id=reply.made, name=reply.title, status=reply.state)",
    ],
)
def test_nobody_waits_for_what_has_no_part_in_the_answer(body: str) -> None:
    assert codes(ANSWER.format(body=body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "reply = await ask(text); return {'reply': reply}",
        "reply = await ask(text); return {'title': reply.title}",
        "reply = await ask(text); return {'id': other, 'message': reply}",
        "reply = await ask(text); return Made(document_id=other, text=reply)",
        "reply = await ask(text); return {'id': other, **reply}",
        "lines = (await ask(text)).splitlines(); return {'steps': lines[:3]}",  # not a preview
        "reply = await ask(text); rows.append(reply); return rows",
        "reply = await ask(text); store.save(reply); return await store.load()",
        "store.reply = await ask(text); return store",
        "first, second = await ask(text), 1; parts = [f'{first}']; return {'parts': ''.join(parts)}",
        "total = ''\n        for part in await ask(text):\n            total += part\n        return total",
        "reply = await ask(text)\n        if reply == 'no':\n            return None\n        return {'rows': rows}",
        "reply = await ask(text)\n        def show():\n            return reply\n        return show()",
        "if (reply := await ask(text)):\n            rows = [reply]\n        return rows",
        "reply = await ask(text); request.session['reply'] = reply; return RedirectResponse('/chat')",
        "reply = await ask(text); return RedirectResponse(f'/chat?reply={reply}')",
        "reply = await ask(text); store.add(reply)\n        if reply:\n            return redirect('/')\n        return {}",
        "reply = await ask(text); flash(reply); return redirect(url_for('chat'))",
        "reply = await ask(text); return redirect_to_chat()",
        "reply = await ask(text); return render(request, 'chat.html', {'reply': reply})",
        "reply = await ask(text); store.save(reply); return render(request, 'chat.html', {'all': load()})",
        "shown = request.user.chats.all(); await ask(text); return render(request, 'chat.html', {'all': shown})",
        "reply = await ask(text); return render_template('chat.html', **locals())",
        "with ZipFile(rows, 'w') as made:\n            made.writestr('a', await ask(text))\n        return Response(rows)",
        "reply = await ask(text); row_ids = [row.key for row in reply]; return store.rows(row_ids)",
        "await ask(text); return (await ask(other)).choices",  # the second one is the answer
        "shop = load(text); made_count = shop.restock(await ask(text)); return {'items': shop.items}",
    ],
)
def test_somebody_waits_for_what_the_answer_is_made_of(body: str) -> None:
    assert codes(ANSWER.format(body=body)) == ["HU004"]


def test_a_callee_that_reads_from_the_websocket_sees_its_end() -> None:
    source = """
        from fastapi import FastAPI, WebSocket
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI()

        async def call(websocket, text):
            {read}
            await client.chat.completions.create(model="m", messages=[], max_tokens=500)

        @app.websocket("/call")
        async def handle(websocket: WebSocket):
            text = await websocket.receive_text()
            await call(websocket=websocket, text=text)
    """
    assert codes(source.format(read="await websocket.send_text(text)")) == ["HU004"]
    assert codes(source.format(read="text = await websocket.receive_text()")) == []


STREAM = """
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
    from langchain_openai import ChatOpenAI

    app = FastAPI()
    llm = ChatOpenAI()

    @app.post("/chat")
    async def chat(body: dict):
        if {test}:
            chunks = await llm.ainvoke(body, as_stream=True)
            return StreamingResponse(events(chunks))
        return {whole}
"""


def test_a_branch_that_streams_is_no_whole_answer() -> None:
    whole = "await llm.ainvoke(body)"
    found = lint_source(dedent(STREAM.format(test="body.stream", whole=whole)))
    assert [(f.code, f.line) for f in found] == [("HU004", 14)]
    assert codes(STREAM.format(test="body.stream", whole="{'error': body}")) == []
    assert codes(STREAM.format(test="not body.stream", whole="{'error': body}")) == ["HU004"]


@pytest.mark.parametrize("path", ["/activities/{id}/completion", "/v1/chat/completions", "/v1/completion", "/chat/completion"])
def test_a_path_that_ends_in_completion(path: str) -> None:
    source = f"""
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("{path}")
        async def handle(body: dict, service: object):
            return await service.submit_completion(body)
    """
    assert codes(source) == ([] if "activities" in path else ["HU004"])


@pytest.mark.parametrize(
    "body",
    [
        "reply = await ask(text); link = store.save(reply); return {'link': link['url'], 'words': len(reply)}",
        "reply = await ask(text); store.save(reply); return {'preview': reply[:100], 'id': reply.id}",
        "made = await ask(text); return {'ids': [str(one.id) for one in made], 'count': len(made), 'type': made.quiz_type}",
        "reply = await ask(text); status = store.save(reply); return {'status': status}",
        "shop = load(text); made_count = shop.restock(await ask(text)); return {'items': rows}",
        "made_count = json.loads(await ask(text)); return {'items': json.loads(other)}",  # a module keeps nothing
        "outcome = await ask(text); return {'done': outcome.get('status'), 'book': outcome.get('book_id')}",
        "num_chunks = store.save(await ask(text)); return {'indexed': True, 'chunks_created': num_chunks}",
    ],
)
def test_an_id_a_link_or_a_length_is_no_answer(body: str) -> None:
    assert codes(ANSWER.format(body=body)) == []


KEPT = """
    from fastapi import FastAPI
    from openai import AsyncOpenAI

    app = FastAPI()
    client = AsyncOpenAI()

    async def ask(text):
        return await client.chat.completions.create(model="m", messages=[], max_tokens=500)

    async def make(db, text, out):
        result = {{"status": "skipped", "chars": 0}}
        if not text:
            return result
        reply = await ask(text)
        {body}
        result["status"] = "ok"
        return result

    @app.post("/portrait")
    async def portrait(text: str, db: object, out: list):
        return await make(db, text, out)
"""


@pytest.mark.parametrize("body", ["await db.save(reply)", "result['chars'] = len(reply); db.add(reply)"])
def test_a_function_that_stores_a_generation_and_returns_a_status(body: str) -> None:
    assert codes(KEPT.format(body=body)) == []


@pytest.mark.parametrize("body", ["result['text'] = reply", "out.append(reply)", "out.text = reply", "return {'text': reply}"])
def test_a_function_that_passes_a_generation_on(body: str) -> None:
    assert codes(KEPT.format(body=body)) == ["HU004"]


@pytest.mark.parametrize(
    "name", ["run_digest_for_all_users", "backfill_contacts", "fire_notification", "generate_gemini_image", "build_dataset"]
)
def test_batches_messages_and_pictures_by_their_names(name: str) -> None:
    source = dedent(ANSWER.format(body="return await ask(text)"))
    assert codes(source.replace("ask(", f"{name}(")) == []
    assert codes(source.replace("ask(", "generate_from_image(")) == ["HU004"]


def test_who_does_not_await_what_a_function_returns_gets_the_answer() -> None:
    source = """
        from fastapi import FastAPI
        from app.clients import client

        app = FastAPI()

        def ask(text):
            for attempt in range(3):
                return client.responses.create(model="m", input=text, max_output_tokens=500)

        @app.post("/answer")
        {kind}def answer(text: str):
            reply = {waits}ask(text)
            return reply.output_text
    """
    assert codes(source.format(kind="", waits="")) == ["HU004"]
    assert codes(source.format(kind="async ", waits="await ")) == ["HU004"]


def test_a_nested_function_that_an_awaited_call_is_given_is_called() -> None:
    source = """
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI()

        @app.post("/answer")
        async def answer(text: str, retry):
            async def ask():
                return await client.chat.completions.create(model="m", messages=[], max_tokens=500)

            return {call}
    """
    assert codes(source.format(call="await retry(ask)")) == ["HU004"]
    assert codes(source.format(call="await retry(text)")) == []


def test_django_views_by_their_names_and_actions() -> None:
    source = """
        import openai
        from django.views import View
        from rest_framework.decorators import action
        from rest_framework.viewsets import ViewSet

        class BaseView(View):
            pass

        class Chat(BaseView):
            def post(self, request):
                return openai.Completion.create(model="m", prompt="p", max_tokens=500)

        class Chats(ViewSet):
            @action(detail=False, methods=["post"])
            def ask(self, request):
                return openai.Completion.create(model="m", prompt="p", max_tokens=500)
    """
    assert codes(source) == ["HU004", "HU004"]

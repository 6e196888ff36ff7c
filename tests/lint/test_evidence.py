"""The certainty of findings: what is passed on to the client, what names say, and how the levels are chosen and shown."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from hangup.cli.main import main
from hangup.lint import lint_source
from hangup.lint.purposes import says_generation

HEAD = """
    from fastapi import FastAPI
    from openai import AsyncOpenAI, OpenAI

    app = FastAPI()
    client = AsyncOpenAI()
    blocking = OpenAI()

    async def work(text):
        made = await client.chat.completions.create(model="m", messages=[text])
        return made.choices[0].message.content
"""
LOST = """
    async def keep(entry):
        made = await work(entry.text)
        log(made)
        return entry

    @app.post("/items")
    async def post(entry: Entry):
        found = await keep(entry)
        return found
"""


def levels(source: str, head: str = HEAD) -> list[str]:
    return [f"{f.code} {f.certainty}" for f in lint_source(dedent(head) + dedent(source))]


def handler(route: str, name: str, line: str) -> str:
    return f"""
    @app.post("{route}")
    async def {name}(text: str):
        made = {line}
        return {{"made": made}}
    """


@pytest.mark.parametrize(
    ("route", "name"),
    [("/chat", "post"), ("/items/{id}/summarize", "post"), ("/items", "post"), ("/alloy", "post"), ("/device", "important")],
)
def test_a_text_that_is_the_answer_is_certain_unless_a_name_says_otherwise(route: str, name: str) -> None:
    assert levels(handler(route, name, "await work(text)")) == ["HU004 certain"]


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("/documents/upload", "post"),
        ("/items", "import_profile"),
        ("/items", "importProfile"),
        ("/scan-mails", "post"),
        ("/items", "rate_all"),
        ("/weekly-report", "post"),
        ("/agents/{id}/memory", "post"),
        ("/debug/ask", "post"),
        ("/demo", "post"),
        ("/admin/judge", "post"),
    ],
)
def test_what_is_handed_in_worked_through_or_tried_out_is_only_likely(route: str, name: str) -> None:
    assert levels(handler(route, name, "await work(text)")) == ["HU004 likely"]


@pytest.mark.parametrize(("route", "name"), [("/query/upload", "post"), ("/batch", "summarize_batch"), ("/items", "ask_all")])
def test_what_is_handed_in_may_be_answered_by_its_name(route: str, name: str) -> None:
    assert levels(handler(route, name, "await work(text)")) == ["HU004 certain"]


@pytest.mark.parametrize(("name", "says"), [("build_preview", False), ("review_text", True), ("paragraph_of", False)])
def test_parts_of_other_words_do_not_say_that_text_is_generated(name: str, says: bool) -> None:
    assert says_generation(name) is says


def test_what_is_called_says_that_something_is_worked_through() -> None:
    source = "async def rate_all(text):\n    return await work(text)\n"
    assert levels(dedent(HEAD) + source + dedent(handler("/items", "post", "await rate_all(text)")), "") == ["HU004 likely"]


def test_a_text_that_a_function_on_the_way_keeps_is_only_likely() -> None:
    assert levels(LOST) == ["HU004 likely"]


@pytest.mark.parametrize(
    "lines",
    [
        "return await work(text)",
        "out = []\n        out.append(await work(text))\n        return out",
        "out = {}\n        out['text'] = await work(text)\n        return out",
        "self.text = await work(text)\n        return self",
        "answer = (await work(text)).strip()\n        page = {'a': answer}\n        return page",
        "text.update(answer=await work(text))\n        return True",
        "if made := await work(text):\n            return made\n        return ''",
    ],
)
def test_a_text_is_passed_on_in_many_ways(lines: str) -> None:
    source = f"""
    class Service:
        async def reply(self, text):
            {lines.replace(chr(10) + "    ", chr(10) + "        ")}

    service = Service()
    """
    assert levels(source + handler("/chat", "chat", "await service.reply(text)")) == ["HU004 certain"]


@pytest.mark.parametrize(
    "lines", ["await work(text)", "made = await work(text)\n    save(made)", "if await work(text):\n        text = ''"]
)
def test_a_text_is_lost_in_many_ways(lines: str) -> None:
    source = f"async def reply(text):\n    {lines}\n    return Row()\n"
    assert levels(dedent(HEAD) + source + dedent(handler("/items", "post", "await reply(text)")), "") == ["HU004 likely"]


def test_of_several_calls_that_whose_text_is_the_answer_is_named() -> None:
    source = """
    async def fetch(text):
        made = await work(text)
        cache(made)
        return text

    @app.post("/items")
    async def post(text: str):
        page = await fetch(text)
        made = await answer(page)
        return {"page": page, "made": made}

    async def answer(text):
        return await work(text)
    """
    (found,) = lint_source(dedent(HEAD) + dedent(source))
    assert (found.certainty, found.message.partition(" ")[0]) == ("certain", "`answer`")


def asked(condition: str, call: str = "await work(body.text)") -> str:
    return f"""
    @app.post("/items")
    async def post(request: Request, body: Body):
        answer = ""
        {condition}
            answer = {call}
        return answer
    """


@pytest.mark.parametrize(
    "condition",
    [
        'if body.mode == "draft":',
        "if body.document:",
        "if not cached(body):",
        "try:\n            load()\n        except KeyError:",
    ],
)
def test_what_a_branch_of_the_handler_decides_is_only_likely(condition: str) -> None:
    assert levels(asked(condition)) == ["HU004 likely"]


@pytest.mark.parametrize(
    "condition",
    [
        "with lock:",
        "for _ in range(2):",
        'if request.method == "POST":',
        "if form.is_valid():",
        'if request.method == "POST" and form.validate_on_submit():',
        'if not request.method == "GET":',
        "try:\n            load()\n        finally:",
    ],
)
def test_what_every_accepted_request_comes_to_is_certain(condition: str) -> None:
    assert levels(asked(condition)) == ["HU004 certain"]


def test_a_thread_that_a_branch_of_the_handler_decides_about_is_only_likely() -> None:
    head = (
        HEAD
        + """
    import asyncio

    def ask(text):
        return blocking.chat.completions.create(model="m", messages=[text])
    """
    )
    call = "await asyncio.to_thread(ask, body.text)"
    assert levels(asked("if body.document:", call), head) == ["HU004 likely"]
    assert levels(asked("with lock:", call), head) == ["HU004 certain"]


def test_branches_below_the_handler_leave_it_certain() -> None:
    source = """
    async def reply(text):
        if len(text) > 3:
            return await work(text)
        return text
    """
    assert levels(source + handler("/chat", "chat", "await reply(text)")) == ["HU004 certain"]


BLOCKING = """
    def ask(text):
        made = blocking.chat.completions.create(model="m", messages=[text])
        return made

    async def second(text):
        {lines}

    async def first(text):
        return await second(text)

    @app.post("/chat")
    async def chat(text: str):
        return await first(text)
"""


def test_a_blocking_call_whose_text_is_kept_on_the_way_needs_a_name_that_says_it() -> None:
    kept = BLOCKING.format(lines="made = ask(text)\n        log(made)\n        return text")
    assert levels(kept) == ["HU005 certain"]
    unsaid = kept.replace("/chat", "/items").replace("chat(text", "post(text").replace("ask(", "work_on(")
    assert levels(unsaid) == ["HU005 likely"]


@pytest.mark.parametrize(
    ("line", "level"), [("return ask(text)", "certain"), ("log(ask(text))\n        return text", "likely")]
)
def test_a_webhook_for_a_chat_may_answer_who_calls_it(line: str, level: str) -> None:
    assert levels(BLOCKING.format(lines=line).replace("/chat", "/webhook/chat")) == [f"HU005 {level}"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.hangup.lint]\n")
    (tmp_path / "app.py").write_text(dedent(HEAD) + dedent(LOST))
    return tmp_path


def lint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["lint", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_likely_findings_are_counted_and_shown_if_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, folder) == (0, "", "hangup: no findings in 1 file; 1 likely with --certainty likely\n")
    code, out, err = lint(capsys, folder, "--certainty", "likely")
    assert code == 1 and "[nobody-watches-client, likely]" in out and err == "hangup: 1 finding in 1 file\n"
    (folder / "pyproject.toml").write_text('[tool.hangup.lint]\ncertainty = "likely"\n')
    assert lint(capsys, folder)[0] == 1  # from the cache, which knows facts and not what was reported
    assert lint(capsys, folder, "--certainty", "certain")[0] == 0
    (folder / "pyproject.toml").write_text('[tool.hangup.lint]\ncertainty = "maybe"\n')
    code, _, err = lint(capsys, folder)
    assert code == 2 and 'certainty must be "certain" or "likely"' in err


def test_formats_tell_likely_findings_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(name: str) -> str:
        return lint(capsys, folder, "--certainty", "likely", "--format", name)[1]

    assert json.loads(shown("json"))[0]["certainty"] == "likely"
    (result,) = json.loads(shown("sarif"))["runs"][0]["results"]
    assert result["level"] == "note" and result["properties"] == {"certainty": "likely"}
    assert shown("github").startswith("::notice ")


def test_an_ignored_likely_finding_is_no_unused_ignore(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "app.py").read_text()
    (folder / "app.py").write_text(text.replace("await keep(entry)", "await keep(entry)  # hangup: ignore[HU004]"))
    assert lint(capsys, folder) == (0, "", "hangup: no findings in 1 file\n")


def test_a_baseline_lists_what_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = folder / "known.json"
    lint(capsys, folder, "--write-baseline", known)
    assert json.loads(known.read_text())["findings"] == []
    lint(capsys, folder, "--certainty", "likely", "--write-baseline", known)
    assert lint(capsys, folder, "--certainty", "likely", "--baseline", known)[0] == 0


@pytest.mark.parametrize(
    "path", ["backups/2026-01-23/app.py", "server/legacy/app.py", "main_original.py", "app.bak.py", "old/app.py"]
)
def test_findings_in_old_copies_are_only_likely(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(HEAD) + dedent(handler("/chat", "chat", "await work(text)")))
    (tmp_path / "main.py").touch()
    assert lint(capsys, tmp_path) == (0, "", "hangup: no findings in 2 files; 1 likely with --certainty likely\n")


@pytest.mark.parametrize("path", ["app.py", "routers/legacy_routes.py", "folder/app.py", "threshold.py", "copywriter/app.py"])
def test_other_files_are_no_old_copies(path: str) -> None:
    source = dedent(HEAD) + dedent(handler("/chat", "chat", "await work(text)"))
    assert [f.certainty for f in lint_source(source, path)] == ["certain"]


def test_a_tool_that_is_a_function_of_the_project_is_no_model() -> None:
    source = """
    from langchain_core.tools import tool

    @tool
    async def reset_products() -> dict:
        return {"count": 3}

    @app.post("/products/reset")
    async def reset(text: str):
        made = await reset_products.ainvoke({})
        return made
    """
    assert levels(source) == []
    assert levels(source.replace("reset_products.ainvoke", "agent.ainvoke")) == ["HU004 certain"]


def steps(count: int, branches: int = 0, *, call: str = "await work(text)", kind: str = "async ") -> str:
    """Return a handler, and so many functions between it and the model, the first of them in branches."""
    wait = "await " if kind else ""
    functions = [(f"step_{n}", f"{wait}step_{n + 1}(text)" if n < count else call) for n in range(1, count + 1)]
    lines = []
    for index, (name, line) in enumerate(functions):
        inside = branches if index == 0 else 0
        lines += [f"{kind}def {name}(text):", *("    " * (n + 1) + f"if text != '{n}':" for n in range(inside))]
        lines.append("    " * (inside + 1) + f"return {line}")
    handler = ["@app.post('/items')", "async def post(text: str):", f"    return {wait}step_1(text)"]
    return "\n".join([*lines, *handler]) + "\n"


@pytest.mark.parametrize(
    ("count", "branches", "level"), [(3, 0, "certain"), (4, 0, "likely"), (3, 3, "certain"), (3, 4, "likely"), (1, 4, "likely")]
)
def test_a_long_way_to_the_model_or_one_with_branches_is_only_likely(count: int, branches: int, level: str) -> None:
    """The function that calls the model is a step as well."""
    assert levels(dedent(HEAD) + steps(count, branches), "") == [f"HU004 {level}"]


@pytest.mark.parametrize(("count", "branches", "level"), [(4, 3, "certain"), (5, 0, "likely"), (1, 4, "likely")])
def test_who_wants_a_text_waits_for_it_on_a_longer_way(count: int, branches: int, level: str) -> None:
    source = dedent(HEAD) + steps(count, branches).replace("'/items'", "'/items/suggestions'")
    assert levels(source, "") == [f"HU004 {level}"]


@pytest.mark.parametrize(
    ("route", "name", "level"),
    [
        ("/summaries/analyze", "post", "certain"),
        ("/items", "rewriteText", "certain"),
        ("/items", "createPlan", "certain"),  # handed in, and a text is wanted
        ("/items", "create_item", "likely"),
        ("/feedback", "post", "likely"),
        ("/items/analyze", "run_evaluation", "certain"),
        ("/items", "run_evaluation", "likely"),
        ("/chat/confirm", "post", "likely"),
        ("/chat", "chat_resume", "likely"),
    ],
)
def test_what_a_client_has_done_may_be_wanted_without_it(route: str, name: str, level: str) -> None:
    source = f"""
    async def first(text):
        return await work(text)

    @app.post("{route}")
    async def {name}(text: str):
        return {{"made": await first(text)}}
    """
    assert levels(source) == [f"HU004 {level}"]


@pytest.mark.parametrize(
    ("count", "branches", "level"),
    [(3, 0, "certain"), (4, 0, "likely"), (2, 1, "certain"), (3, 1, "likely"), (1, 2, "certain"), (2, 2, "likely")],
)
def test_a_place_that_blocks_needs_a_shorter_way_if_what_it_generates_is_stored(count: int, branches: int, level: str) -> None:
    source = steps(count, branches, call="blocking.chat.completions.create(model='m', messages=[text])", kind="")
    stored = source.replace("async def post(text: str):\n", "async def post(text: str):\n    db.commit()\n")
    assert levels(dedent(HEAD) + stored, "") == [f"HU005 {level}"]
    assert levels(dedent(HEAD) + source, "") == ["HU005 certain"]


@pytest.mark.parametrize(("count", "branches", "level"), [(5, 3, "certain"), (6, 0, "likely"), (1, 4, "likely")])
def test_a_place_that_blocks_far_from_the_handler(count: int, branches: int, level: str) -> None:
    source = steps(count, branches, call="blocking.chat.completions.create(model='m', messages=[text])", kind="")
    assert levels(dedent(HEAD) + source, "") == [f"HU005 {level}"]


@pytest.mark.parametrize(
    ("name", "line", "level"),
    [
        ("add_dream", "db.session.commit()", "likely"),
        ("create_moment", "await moments.insert_one(made)", "likely"),
        ("dream", "await keep(made)", "likely"),  # on the way
        ("dream", "notes.add(made)", "certain"),  # of a set, maybe
        ("add_dream", "notes.add(made)", "likely"),  # handed in, whatever becomes of it
        ("explore_dream", "db.session.commit()", "likely"),
        ("analyze_dream", "db.session.commit()", "likely"),  # a text is wanted, now or later
        ("analyze_dream", "await keep(made)", "likely"),
        ("analyze_dream", "await keep_on(made)", "likely"),
        ("analyze_dream", "crud.create_dream(made)", "likely"),
        ("analyze_dream", "storage.save_analysis(made)", "likely"),
        ("analyze_dream", "save_dream(made)", "likely"),
        ("analyze_dream", "DreamRepository.create(made)", "likely"),
        ("answer_dream", "save_dream(made)", "likely"),  # a client may hand it in
        ("answer_dream", "log(made)", "certain"),
        ("generate_question", "save_dream(made)", "likely"),
        ("dream_title", "log(made)", "likely"),  # a few words
        ("tell_and_send", "log(made)", "likely"),  # to somebody else
        ("analyze_dream", "save_chat_message(made)", "certain"),  # what was said is always kept
        ("analyze_dream", "storage.load(made)", "certain"),
        ("add_message", "db.session.commit()", "certain"),  # an answer all the same
        ("ask_about_dream", "db.session.commit()", "certain"),
    ],
)
def test_what_is_stored_may_be_wanted_even_if_nobody_waits(name: str, line: str, level: str) -> None:
    source = f"""
    async def keep(made):
        made = await work(made)
        db.session.commit()
        return made

    async def keep_on(made):
        return await keep(made)

    @app.post("/dreams")
    async def {name}(text: str):
        made = {"text" if "keep" in line else "await work(text)"}
        made = {line if "keep" in line else "made"}
        {"pass" if "keep" in line else line}
        return {{"made": made}}
    """
    assert levels(source) == [f"HU004 {level}"]


@pytest.mark.parametrize(
    ("route", "name", "level"),
    [
        ("/chat", "post", "certain"),
        ("/dreams", "ask_about_dream", "certain"),
        ("/translate", "post", "certain"),
        ("/dreams", "submit_answer", "likely"),
        ("/questions", "post", "likely"),
        ("/dreams", "post", "likely"),
    ],
)
def test_who_is_asked_something_is_waited_for_whatever_is_on_the_way(route: str, name: str, level: str) -> None:
    source = f"""
    @app.post("{route}")
    async def {name}(text: str, body: Body):
        made = ""
        if body.mode == "draft":
            made = await work(text)
        return {{"made": made}}
    """
    assert levels(source) == [f"HU004 {level}"]


def test_of_two_branches_that_a_constant_chooses_from_the_first_is_certain() -> None:
    source = """
    @app.post("/ask")
    async def ask(text: str, short: bool):
        if {condition}:
            return blocking.responses.create(model="m", input=text)
        else:
            return blocking.chat.completions.create(model="m", messages=[text])
    """
    for condition in ("USE_NEW_SDK", "USE_NEW_SDK and blocking"):
        assert levels(source.replace("{condition}", condition)) == ["HU005 certain", "HU005 likely"]
    assert levels(source.replace("{condition}", "short")) == ["HU005 certain", "HU005 certain"]
    assert levels(source.replace("{condition}", "USE_NEW_SDK").replace("blocking.responses.create", "plain")) == [
        "HU005 certain"
    ]


def test_what_blocks_the_loop_does_so_whether_it_is_stored_or_not() -> None:
    source = """
    @app.post("/dreams")
    async def add_dream(text: str):
        made = blocking.chat.completions.create(model="m", messages=[text])
        db.session.commit()
        return {"made": made}
    """
    assert levels(source) == ["HU005 certain"]


@pytest.mark.parametrize("route", ["/judge/compare", "/benchmarks/run", "/red-team/attack", "/redteaming/attack"])
def test_who_tries_models_out_waits_for_no_text(route: str) -> None:
    assert levels(handler(route, "post", "await work(text)")) == ["HU004 likely"]

"""Whole answers assembled from events, API by API, without sockets: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import orjson
import pytest

from hangup.config import LimitSettings
from hangup.gateway.apis.anthropic import AnthropicMessages
from hangup.gateway.apis.base import Api, Cap, Cut, Json
from hangup.gateway.apis.ollama import OllamaChat
from hangup.gateway.apis.openai_chat import OpenAIChat
from hangup.gateway.apis.openai_responses import OpenAIResponses
from hangup.gateway.apis.sglang import SglangAssembler, SglangGenerate
from hangup.gateway.backends.adapters import Seen
from hangup.gateway.backends.adapters.sglang import SglangAdapter
from hangup.gateway.engine_request import GenerationRequest
from hangup.gateway.http.head import RequestHead

CHAT, RESPONSES = OpenAIChat(), OpenAIResponses()


def assemble(api: Api, body: Json, *events: Any, capped: bool = False) -> Json:
    ask = api.read("/", body, LimitSettings(), True)
    assert ask.assembler is not None
    for event in copy.deepcopy(events):  # they are taken over
        ask.assembler.add(event)
    assert capped or ask.assembler.finished
    return ask.assembler.result(capped)


def chat(*deltas: Json) -> Json:
    """Return the message that is assembled from these deltas."""
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    message: Json = assemble(CHAT, {"messages": []}, *chunks, end)["choices"][0]["message"]
    return message


class TestChat:
    def test_texts_of_any_field_grow(self) -> None:
        message = chat({"role": "assistant", "content": "x", "thought": "let me "}, {"role": "assistant", "thought": "think"})
        assert message == {"role": "assistant", "content": "x", "thought": "let me think"}

    def test_sound(self) -> None:
        deltas = [{"audio": {"id": "a", "transcript": "Hel"}}, {"audio": {"transcript": "lo"}}]
        message = chat(*deltas, {"audio": {"data": "QQ=="}}, {"audio": {"data": "Qg=="}}, {"audio": {"data": "Qw=="}})
        assert message["audio"] == {"id": "a", "transcript": "Hello", "data": "QUJD"}

    @pytest.mark.parametrize("more", [{"audio": {"format": "wav"}}, {"modalities": ["text", "audio"]}])
    def test_sound_is_asked_for_as_the_client_did(self, more: Json) -> None:
        """OpenAI streams only PCM; whole answers are WAV or MP3."""
        assert CHAT.read("/", {"messages": [], **more}, LimitSettings(), True).assembler is None

    def test_padding_of_events_is_no_part_of_the_answer(self) -> None:
        end = {"id": "c", "obfuscation": "q8f", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
        assert "obfuscation" not in assemble(CHAT, {"messages": []}, {**end, "choices": []}, end)

    def tools(self, *pieces: Json) -> list[tuple[str, str, str]]:
        calls = chat(*({"tool_calls": [piece]} for piece in pieces))["tool_calls"]
        return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]

    def test_tool_calls_without_an_index(self) -> None:
        begin = [{"index": None, "id": id, "function": {"name": id * 2, "arguments": "{"}} for id in "ab"]
        more = {"index": None, "function": {"arguments": "}"}}
        assert self.tools(begin[0], more, begin[1], more) == [("a", "aa", "{}"), ("b", "bb", "{}")]
        known = {"id": "a", "function": {"arguments": "}"}}
        assert self.tools(begin[0], begin[1], known, more) == [("a", "aa", "{}"), ("b", "bb", "{}")]

    def test_tool_calls_that_share_an_index(self) -> None:
        begin = [{"index": 0, "id": id, "function": {"name": id * 2, "arguments": "{"}} for id in "ab"]
        more = {"index": 0, "function": {"arguments": "}"}}
        assert self.tools(begin[0], more, begin[1], more) == [("a", "aa", "{}"), ("b", "bb", "{}")]

    def test_a_new_id_for_every_piece_is_one_call(self) -> None:
        pieces = [{"index": 0, "id": f"id{n}", "function": {"arguments": text}} for n, text in enumerate("{}")]
        first = {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}
        assert self.tools(first, *pieces) == [("a", "f", "{}")]

    def test_a_name_that_is_repeated_is_one_call(self) -> None:
        pieces = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": text}} for text in "{}"]
        assert self.tools(*pieces) == [("a", "f", "{}")]


class TestMessages:
    def test_unknown_deltas_and_fields(self) -> None:
        answer = assemble(
            AnthropicMessages(),
            {"messages": []},
            {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "in "}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "short"}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 2},
                "context_management": {},
            },
            {"type": "message_stop"},
        )
        assert answer == {
            "id": "m",
            "usage": {"input_tokens": 5, "output_tokens": 2},
            "content": [{"type": "compaction", "content": "in short"}],
            "stop_reason": "end_turn",
            "context_management": {},
        }

    @pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("rate_limit_error", 429), ("odd", 502)])
    def test_errors(self, kind: str, status: int) -> None:
        event = {"type": "error", "error": {"type": kind, "message": "no"}}
        assert AnthropicMessages().failure(event) == (status, event)


def test_ollama_keeps_logprobs() -> None:
    rows = [{"message": {"content": text}, "done": False, "logprobs": [{"token": text}]} for text in "ab"]
    answer = assemble(OllamaChat(), {"messages": [], "stream": False}, *rows, {"message": {"content": ""}, "done": True})
    assert (answer["message"]["content"], answer["logprobs"]) == ("ab", [{"token": "a"}, {"token": "b"}])


class TestSglang:
    @pytest.mark.parametrize(("in_pieces", "text"), [(True, "hahaha!"), (False, "ha!"), (None, "ha!")])
    def test_what_the_server_says_of_its_streams_is_believed(self, in_pieces: bool | None, text: str) -> None:
        """Neither "ha", "ha", "ha!" nor ids alone can show whether each event repeats all the text so far."""
        assembler = SglangAssembler()
        assembler.texts_in_pieces = in_pieces
        for piece, reason in (("ha", None), ("ha", None), ("ha!", {"type": "stop"})):
            assembler.add({"text": piece, "meta_info": {"finish_reason": reason}})
        assert assembler.finished and assembler.result(capped=False)["text"] == text

    @pytest.mark.parametrize(
        ("told", "in_pieces"),
        [
            ({"incremental_streaming_output": True, "stream_output": True}, True),
            ({"incremental_streaming_output": False}, False),
            ({"stream_output": True}, False),  # which is about ids
            ({}, None),
        ],
    )
    def test_it_is_asked_for_it(self, told: dict[str, Any], in_pieces: bool | None) -> None:
        async def get(path: str) -> Seen:
            return Seen(200, "", orjson.dumps(told if path == "/server_info" else {}))

        assert asyncio.run(SglangAdapter().inspect(get)).texts_in_pieces is in_pieces

    def text(self, *events: tuple[str, list[int]]) -> tuple[str, list[int]]:
        rows: list[Json] = [
            {"text": text, "output_ids": ids, "meta_info": {"completion_tokens": n, "finish_reason": None}}
            for n, (text, ids) in enumerate(events, start=1)
        ]
        rows[-1]["meta_info"]["finish_reason"] = {"type": "stop"}
        answer = assemble(SglangGenerate(), {"text": "x"}, *rows)
        return answer["text"], answer["output_ids"]

    def test_whole_texts(self) -> None:
        assert self.text(("ha", [1]), ("ha", [1, 2]), ("haha!", [1, 2, 3])) == ("haha!", [1, 2, 3])

    def test_differences(self) -> None:
        assert self.text(("ha", [1]), ("ha", [1]), ("ha!", [2])) == ("hahaha!", [1, 1, 2])
        assert self.text(("a", [1]), ("b", [2]), ("", [3]), ("b", [2])) == ("abb", [1, 2, 3, 2])

    def test_differences_of_ids_alone(self) -> None:
        assert self.text(("h", [1]), ("ha", [2]), ("hah", [1])) == ("hah", [1, 2, 1])


class TestResponses:
    def test_an_error_event(self) -> None:
        event = {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None}
        failure = RESPONSES.failure(event)
        assert failure is not None and failure.status == 429
        assert failure.body["error"]["message"] == "slow down"

    def test_what_is_left_of_a_stream_that_was_cut(self) -> None:
        """Reasoning, a refusal or a tool's arguments appear in the answer that ends at the cap, and in a stream's last
        event."""
        thought = {"type": "reasoning", "id": "r", "summary": []}
        said = {"type": "message", "id": "m", "status": "in_progress", "content": []}
        called = {"type": "function_call", "id": "f", "name": "f", "arguments": "", "status": "in_progress"}

        def events() -> list[Json]:
            summary = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0}
            refusal = {"type": "response.refusal.delta", "output_index": 1, "content_index": 0}
            arguments = {"type": "response.function_call_arguments.delta", "output_index": 2}
            return [
                {"type": "response.created", "response": {"id": "x", "status": "in_progress", "output": []}},
                {"type": "response.output_item.added", "output_index": 0, "item": {**thought, "summary": []}},
                {**summary, "delta": "hm"},
                {**summary, "delta": "m"},
                {"type": "response.output_item.added", "output_index": 1, "item": {**said, "content": []}},
                {**refusal, "delta": "I "},
                {**refusal, "delta": "won't"},
                {"type": "response.output_item.added", "output_index": 2, "item": {**called}},
                {**arguments, "delta": "{"},
            ]

        output = [
            {**thought, "status": "incomplete", "summary": [{"type": "summary_text", "text": "hmm"}]},
            {**said, "status": "incomplete", "content": [{"type": "refusal", "refusal": "I won't"}]},
            {**called, "status": "incomplete", "arguments": "{"},
        ]
        assert assemble(RESPONSES, {"input": "x"}, *events(), capped=True)["output"] == output
        ask = RESPONSES.read("/", {"input": "x", "stream": True}, LimitSettings(), True)
        ask.cap = Cap(4, False, {})
        closing = RESPONSES.closing(Cut(ask, {}, {"sequence_number": 9}, events(), 4, set()))
        assert closing.startswith(b"event: response.incomplete\n")
        assert b'"refusal":"I won\'t"' in closing and b'"sequence_number":9' in closing


@pytest.mark.parametrize("still", [True, False])
def test_a_call_that_begins_anew_streams_as_it_is_asked_then(still: bool) -> None:
    """A reload may have turned assembling off while the first engine hung."""
    head = RequestHead(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n", count_max=8, url_bytes_max=100)
    value: Json = {"messages": []}
    engine_request = GenerationRequest(CHAT, head, b"{}", CHAT.read(head.path, value, LimitSettings(), True), value)
    assert engine_request.streams_unasked and engine_request.streams and not engine_request.blind
    assert engine_request.begin_anew(LimitSettings(), still)
    assert (engine_request.streams_unasked, engine_request.streams, engine_request.blind) == (still, still, not still)
    assert (engine_request.ask.assembler is not None) == still

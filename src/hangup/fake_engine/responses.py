"""Builds each API's answers, streamed and whole, from the same deterministic text.

A `FakeResponse` is made from the request. It provides the events of a stream (`opening`, `token`, `closing`) and the whole
answer (`whole`), so that a test can compare an answer that a gateway assembled from a stream with the whole one.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import orjson

Json = dict[str, Any]

WORDS = (
    "when the client hangs up the engine must stop at once and give its slot to the next call in line "
    "because every token that nobody reads was paid for by somebody who does"
).split()


class FakeResponse:
    """One answer. `length` is its number of tokens per choice, `cap` the client's maximum."""

    content_type = b"text/event-stream; charset=utf-8"
    stream_default = False

    def __init__(self, request: Json, id: str, model: str) -> None:
        self.request = request
        self.id = id
        self.model = str(request.get("model") or model)
        self.created = int(time.time())
        self.stream = bool(request.get("stream", self.stream_default))
        self.prompt = self.prompt_text()
        self.prompt_tokens = max(1, len(self.prompt.split()))
        self.seed = zlib.crc32(self.prompt.encode("utf-8", "replace"))
        self.cap = self.cap_tokens()
        self.choices = self.count_choices()
        self.length = 0
        self.usage_more = 0  # tokens to add to the usage, as a lie
        self.finish = "length"

    # What the request says

    def prompt_text(self) -> str:
        messages = self.request.get("messages") or []
        return " ".join(str(m.get("content")) for m in messages if isinstance(m, dict))

    def cap_tokens(self) -> int:
        given = self.request.get("max_completion_tokens") or self.request.get("max_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def count_choices(self) -> int:
        n = self.request.get("n") or 1
        return n if isinstance(n, int) and n > 0 else 1

    def settle(self, answer_tokens: int, ignore_cap: bool) -> None:
        """Set the length of the answer and its finish reason."""
        natural = 1 << 30 if self.request.get("ignore_eos") else answer_tokens
        self.length = natural if ignore_cap else min(self.cap, natural)
        self.finish = "stop" if self.length == natural else "length"

    # The text

    def word(self, choice: int, index: int) -> str:
        word = WORDS[(self.seed + choice * 7 + index) % len(WORDS)]
        return word if index == 0 else " " + word

    def text(self, choice: int, count: int) -> str:
        return "".join(self.word(choice, index) for index in range(count))

    # The answer

    def opening(self) -> list[bytes]:
        return []

    def token(self, choice: int, index: int) -> bytes:
        raise NotImplementedError

    def closing(self, count: int) -> list[bytes]:
        raise NotImplementedError

    def whole(self, count: int) -> Json:
        raise NotImplementedError


def sse(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def logprob(word: str, top: int) -> Json:
    value = -0.25 - (zlib.crc32(word.encode()) % 100) / 100
    entry = {"token": word, "logprob": value, "bytes": list(word.encode())}
    return {**entry, "top_logprobs": [{**entry, "token": word} for _ in range(top)]}


class FakeChat(FakeResponse):
    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self.tool = (request.get("tools") or [{}])[0].get("function", {}).get("name") if request.get("tools") else None
        self.with_logprobs = bool(request.get("logprobs"))
        self.top = request.get("top_logprobs") or 0
        self.thinks = bool(request.get("reasoning_effort"))
        self.frame = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": self.created, "model": self.model}

    def settle(self, answer_tokens: int, ignore_cap: bool) -> None:
        super().settle(answer_tokens, ignore_cap)
        if self.tool and self.finish == "stop":
            self.finish = "tool_calls"

    def argument(self, choice: int, index: int) -> str:
        """Return one token of a tool call's arguments; all tokens together are JSON."""
        if index == 0:
            return '{"words": "'
        return '"}' if index == self.length - 1 else self.word(choice, index)

    def thought(self, index: int) -> bool:
        return self.thinks and index < 3

    def _event(self, choice: int, delta: Json, finish: str | None, logprobs: Json | None = None) -> bytes:
        row = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return sse({**self.frame, "choices": [row]})

    def opening(self) -> list[bytes]:
        return [self._event(c, {"role": "assistant", "content": ""}, None) for c in range(self.choices)]

    def token(self, choice: int, index: int) -> bytes:
        if self.tool:
            function: Json = {"arguments": self.argument(choice, index)}
            call: Json = {"index": 0, "function": function}
            if index == 0:
                call = {
                    "index": 0,
                    "id": f"call_{self.seed}_{choice}",
                    "type": "function",
                    "function": {"name": self.tool, **function},
                }
            return self._event(choice, {"tool_calls": [call]}, None)
        word = self.word(choice, index)
        if self.thought(index):
            return self._event(choice, {"reasoning_content": word}, None)
        logprobs = {"content": [logprob(word, self.top)], "refusal": None} if self.with_logprobs else None
        return self._event(choice, {"content": word}, None, logprobs)

    def closing(self, count: int) -> list[bytes]:
        events = [self._event(c, {}, self.finish) for c in range(self.choices)]
        if (self.request.get("stream_options") or {}).get("include_usage"):
            events.append(sse({**self.frame, "choices": [], "usage": self.usage(count)}))
        return [*events, DONE]

    def usage(self, count: int) -> Json:
        out = count * self.choices + self.usage_more
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": out, "total_tokens": self.prompt_tokens + out}

    def whole(self, count: int) -> Json:
        rows = []
        for choice in range(self.choices):
            message: Json = {"role": "assistant", "content": None}
            logprobs = None
            if self.tool:
                arguments = "".join(self.argument(choice, index) for index in range(count))
                function = {"name": self.tool, "arguments": arguments}
                message["tool_calls"] = [{"id": f"call_{self.seed}_{choice}", "type": "function", "function": function}]
            else:
                words = [self.word(choice, index) for index in range(count)]
                message["content"] = "".join(w for i, w in enumerate(words) if not self.thought(i))
                if self.thinks:
                    message["reasoning_content"] = "".join(w for i, w in enumerate(words) if self.thought(i))
                if self.with_logprobs:
                    logprobs = {"content": [logprob(w, self.top) for w in words], "refusal": None}
            rows.append({"index": choice, "message": message, "logprobs": logprobs, "finish_reason": self.finish})
        return {**self.frame, "object": "chat.completion", "choices": rows, "usage": self.usage(count)}


class FakeCompletions(FakeResponse):
    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self.frame = {"id": f"cmpl-{id}", "object": "text_completion", "created": self.created, "model": self.model}

    def prompt_text(self) -> str:
        prompt = self.request.get("prompt", "")
        return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))

    def count_choices(self) -> int:
        prompt = self.request.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
        return super().count_choices() * prompts

    def _logprobs(self, choice: int, indices: range) -> Json | None:
        if self.request.get("logprobs") is None:
            return None
        words = [self.word(choice, i) for i in indices]
        values = [logprob(w, 0)["logprob"] for w in words]
        offsets = [len(self.text(choice, i)) for i in indices]
        tops = [{w: v} for w, v in zip(words, values, strict=True)]
        return {"tokens": words, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _event(self, choice: int, text: str, finish: str | None, logprobs: Json | None) -> bytes:
        return sse({**self.frame, "choices": [{"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}]})

    def token(self, choice: int, index: int) -> bytes:
        return self._event(choice, self.word(choice, index), None, self._logprobs(choice, range(index, index + 1)))

    def closing(self, count: int) -> list[bytes]:
        events = [self._event(c, "", self.finish, None) for c in range(self.choices)]
        if (self.request.get("stream_options") or {}).get("include_usage"):
            events.append(sse({**self.frame, "choices": [], "usage": self.usage(count)}))
        return [*events, DONE]

    def usage(self, count: int) -> Json:
        out = count * self.choices + self.usage_more
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": out, "total_tokens": self.prompt_tokens + out}

    def whole(self, count: int) -> Json:
        rows = [
            {"index": c, "text": self.text(c, count), "logprobs": self._logprobs(c, range(count)), "finish_reason": self.finish}
            for c in range(self.choices)
        ]
        return {**self.frame, "choices": rows, "usage": self.usage(count)}


class FakeResponses(FakeResponse):
    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        tools = request.get("tools") or []
        self.tool = tools[0].get("name") if tools else None
        self.sequence = 0

    def prompt_text(self) -> str:
        return str(self.request.get("input", ""))

    def cap_tokens(self) -> int:
        given = self.request.get("max_output_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def count_choices(self) -> int:
        return 1

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": self.request.get("instructions"),
            "max_output_tokens": self.request.get("max_output_tokens"),
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": self.request.get("tools") or [],
            "top_p": 1.0,
            "metadata": {},
            "usage": usage,
        }

    def _named(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self.sequence, **fields}
        self.sequence += 1
        return sse(event, kind)

    def _item(self, count: int | None) -> Json:
        status = "in_progress" if count is None else "completed" if self.finish == "stop" else "incomplete"
        if self.tool:
            arguments = "".join(self.argument(index) for index in range(count or 0))
            base = {"id": f"fc_{self.id}", "type": "function_call", "status": status}
            return {**base, "call_id": f"call_{self.seed}", "name": self.tool, "arguments": arguments}
        content = [] if count is None else [{"type": "output_text", "text": self.text(0, count), "annotations": []}]
        return {"id": f"msg_{self.id}", "type": "message", "status": status, "role": "assistant", "content": content}

    def argument(self, index: int) -> str:
        if index == 0:
            return '{"words": "'
        return '"}' if index == self.length - 1 else self.word(0, index)

    def opening(self) -> list[bytes]:
        events = [
            self._named("response.created", response=self._response("in_progress", [], None)),
            self._named("response.in_progress", response=self._response("in_progress", [], None)),
            self._named("response.output_item.added", output_index=0, item=self._item(None)),
        ]
        if not self.tool:
            part = {"type": "output_text", "text": "", "annotations": []}
            place = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
            events.append(self._named("response.content_part.added", **place, part=part))
        return events

    def token(self, choice: int, index: int) -> bytes:
        if self.tool:
            kind = "response.function_call_arguments.delta"
            return self._named(kind, item_id=f"fc_{self.id}", output_index=0, delta=self.argument(index))
        place = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
        return self._named("response.output_text.delta", **place, delta=self.word(0, index), logprobs=[])

    def closing(self, count: int) -> list[bytes]:
        events = []
        if self.tool:
            arguments = self._item(count)["arguments"]
            kind = "response.function_call_arguments.done"
            events.append(self._named(kind, item_id=f"fc_{self.id}", name=self.tool, output_index=0, arguments=arguments))
        else:
            place = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
            text = self.text(0, count)
            events.append(self._named("response.output_text.done", **place, text=text, logprobs=[]))
            part = {"type": "output_text", "text": text, "annotations": []}
            events.append(self._named("response.content_part.done", **place, part=part))
        events.append(self._named("response.output_item.done", output_index=0, item=self._item(count)))
        last = "response.completed" if self.finish == "stop" else "response.incomplete"
        events.append(self._named(last, response=self.whole(count)))
        return events

    def whole(self, count: int) -> Json:
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + count,
        }
        status = "completed" if self.finish == "stop" else "incomplete"
        return self._response(status, [self._item(count)], usage)


class FakeMessages(FakeResponse):
    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        tools = request.get("tools") or []
        self.tool = tools[0].get("name") if tools else None

    def count_choices(self) -> int:
        return 1

    def _stop_reason(self) -> str:
        return {"stop": "tool_use" if self.tool else "end_turn"}.get(self.finish, "max_tokens")

    def _message(self, content: list[Json], stop: str | None, out: int) -> Json:
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": out}
        head = {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "model": self.model}
        return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    def argument(self, index: int) -> str:
        if index == 0:
            return '{"words": "'
        return '"}' if index == self.length - 1 else self.word(0, index)

    def opening(self) -> list[bytes]:
        block: Json = {"type": "text", "text": ""}
        if self.tool:
            block = {"type": "tool_use", "id": f"toolu_{self.seed}", "name": self.tool, "input": {}}
        return [
            sse({"type": "message_start", "message": self._message([], None, 1)}, "message_start"),
            sse({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start"),
            sse({"type": "ping"}, "ping"),
        ]

    def token(self, choice: int, index: int) -> bytes:
        delta = {"type": "text_delta", "text": self.word(0, index)}
        if self.tool:
            delta = {"type": "input_json_delta", "partial_json": self.argument(index)}
        return sse({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")

    def closing(self, count: int) -> list[bytes]:
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        return [
            sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
            sse({"type": "message_delta", "delta": delta, "usage": {"output_tokens": count}}, "message_delta"),
            sse({"type": "message_stop"}, "message_stop"),
        ]

    def whole(self, count: int) -> Json:
        block: Json = {"type": "text", "text": self.text(0, count)}
        if self.tool:
            arguments = "".join(self.argument(index) for index in range(count))
            whole_call = arguments.endswith('"}')
            block = {
                "type": "tool_use",
                "id": f"toolu_{self.seed}",
                "name": self.tool,
                "input": orjson.loads(arguments) if whole_call else {},
            }
        return self._message([block], self._stop_reason(), count)


class FakeLlamaCpp(FakeResponse):
    def prompt_text(self) -> str:
        return str(self.request.get("prompt", ""))

    def cap_tokens(self) -> int:
        given = self.request.get("n_predict", self.request.get("max_tokens"))
        return given if isinstance(given, int) and given >= 0 else 1 << 30

    def token(self, choice: int, index: int) -> bytes:
        progress = {"tokens_predicted": index + 1, "tokens_evaluated": self.prompt_tokens}
        return sse({"index": 0, "content": self.word(0, index), "tokens": [index], "stop": False, "id_slot": 0, **progress})

    def _last(self, count: int, content: str) -> Json:
        return {
            "index": 0,
            "content": content,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self.model,
            "tokens_predicted": count,
            "tokens_evaluated": self.prompt_tokens,
            "prompt": self.prompt,
            "has_new_line": False,
            "truncated": False,
            "stop_type": "limit" if self.finish == "length" else "eos",
            "stopping_word": "",
            "tokens_cached": self.prompt_tokens + count,
        }

    def closing(self, count: int) -> list[bytes]:
        return [sse(self._last(count, ""))]

    def whole(self, count: int) -> Json:
        answer = self._last(count, self.text(0, count))
        return {**answer, "tokens": list(range(count)) if self.request.get("return_tokens") else []}


class FakeTgi(FakeResponse):
    streamed_path = False

    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self.stream = self.streamed_path

    def prompt_text(self) -> str:
        return str(self.request.get("inputs", ""))

    def cap_tokens(self) -> int:
        given = (self.request.get("parameters") or {}).get("max_new_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def _token(self, index: int) -> Json:
        word = self.word(0, index)
        return {"id": index, "text": word, "logprob": logprob(word, 0)["logprob"], "special": False}

    def _details(self, count: int) -> Json:
        reason = "length" if self.finish == "length" else "eos_token"
        return {"finish_reason": reason, "generated_tokens": count, "seed": None}

    def token(self, choice: int, index: int) -> bytes:
        last = index + 1 >= self.length
        text = self.text(0, index + 1) if last else None
        details = {**self._details(index + 1), "input_length": self.prompt_tokens} if last else None
        return sse({"index": index + 1, "token": self._token(index), "generated_text": text, "details": details})

    def closing(self, count: int) -> list[bytes]:
        return []

    def whole(self, count: int) -> Json:
        answer: Json = {"generated_text": self.text(0, count)}
        if (self.request.get("parameters") or {}).get("details"):
            tokens = [self._token(index) for index in range(count)]
            answer["details"] = {**self._details(count), "prefill": [], "tokens": tokens}
        return answer


class FakeTgiStream(FakeTgi):
    streamed_path = True


class FakeOllama(FakeResponse):
    content_type = b"application/x-ndjson"
    stream_default = True
    chat = True

    def prompt_text(self) -> str:
        return super().prompt_text() if self.chat else str(self.request.get("prompt", ""))

    def cap_tokens(self) -> int:
        given = (self.request.get("options") or {}).get("num_predict")
        return given if isinstance(given, int) and given >= 0 else 1 << 30

    def _line(self, text: str, **fields: Any) -> Json:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created))
        body = {"message": {"role": "assistant", "content": text}} if self.chat else {"response": text}
        return {"model": self.model, "created_at": stamp, **body, **fields}

    def _last(self, count: int) -> Json:
        counts = {"prompt_eval_count": self.prompt_tokens, "eval_count": count}
        return {"done": True, "done_reason": self.finish, "total_duration": 1, "load_duration": 1, **counts, "eval_duration": 1}

    def token(self, choice: int, index: int) -> bytes:
        return orjson.dumps(self._line(self.word(0, index), done=False)) + b"\n"

    def closing(self, count: int) -> list[bytes]:
        return [orjson.dumps(self._line("", **self._last(count))) + b"\n"]

    def whole(self, count: int) -> Json:
        return self._line(self.text(0, count), **self._last(count))


class FakeOllamaGenerate(FakeOllama):
    chat = False


class FakeSglang(FakeResponse):
    def prompt_text(self) -> str:
        return str(self.request.get("text", self.request.get("input_ids", "")))

    def cap_tokens(self) -> int:
        given = (self.request.get("sampling_params") or {}).get("max_new_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def _event(self, count: int, finish: Json | None) -> Json:
        meta = {"id": self.id, "finish_reason": finish, "prompt_tokens": self.prompt_tokens, "completion_tokens": count}
        return {"text": self.text(0, count), "output_ids": list(range(count)), "meta_info": meta}

    def _finish(self, count: int) -> Json:
        return {"type": "length", "length": count} if self.finish == "length" else {"type": "stop", "matched": 2}

    def token(self, choice: int, index: int) -> bytes:
        last = index + 1 >= self.length
        return sse(self._event(index + 1, self._finish(index + 1) if last else None))

    def closing(self, count: int) -> list[bytes]:
        return [DONE]

    def whole(self, count: int) -> Json:
        return self._event(count, self._finish(count))


SHAPES: dict[str, type[FakeResponse]] = {
    "/v1/chat/completions": FakeChat,
    "/v1/completions": FakeCompletions,
    "/v1/responses": FakeResponses,
    "/v1/messages": FakeMessages,
    "/completion": FakeLlamaCpp,
    "/generate": FakeTgi,
    "/generate_stream": FakeTgiStream,
    "/api/chat": FakeOllama,
    "/api/generate": FakeOllamaGenerate,
}


def shape_for(path: str, request: Json) -> type[FakeResponse] | None:
    if path == "/generate" and "inputs" not in request:
        return FakeSglang
    return SHAPES.get(path)

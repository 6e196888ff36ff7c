"""The answers of OpenAI's APIs: chat completions, completions and responses."""

from __future__ import annotations

from typing import Any

from hangup.fake_engine.response import DONE, FakeResponse, Json, logprob, sse


class _ChunkedResponse(FakeResponse):
    """What chat completions and completions share: the end of a stream, and the usage."""

    frame: Json

    def last_event(self, choice: int) -> bytes:
        """Return the event that ends a choice."""
        raise NotImplementedError

    def closing(self, count: int) -> list[bytes]:
        events = [self.last_event(choice) for choice in range(self.choices)]
        if (self.request.get("stream_options") or {}).get("include_usage"):
            events.append(sse({**self.frame, "choices": [], "usage": self.usage(count)}))
        return [*events, DONE]

    def usage(self, count: int) -> Json:
        tokens_out = count * self.choices + self.extra_usage
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens_out,
            "total_tokens": self.prompt_tokens + tokens_out,
        }


class FakeChat(_ChunkedResponse):
    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self.tool = (request.get("tools") or [{}])[0].get("function", {}).get("name") if request.get("tools") else None
        self.with_logprobs = bool(request.get("logprobs"))
        self.top = request.get("top_logprobs") or 0
        self.thinks = bool(request.get("reasoning_effort"))
        self.frame = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": self.created, "model": self.model}

    def set_length(self, answer_tokens: int, ignore_cap: bool) -> None:
        super().set_length(answer_tokens, ignore_cap)
        if self.tool and self.finish_reason == "stop":
            self.finish_reason = "tool_calls"

    def argument(self, choice: int, index: int) -> str:
        """Return one token of a tool call's arguments; all tokens together are JSON."""
        if index == 0:
            return '{"words": "'
        return '"}' if index == self.length - 1 else self.word(choice, index)

    def is_thought(self, index: int) -> bool:
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
        if self.is_thought(index):
            return self._event(choice, {"reasoning_content": word}, None)
        logprobs = {"content": [logprob(word, self.top)], "refusal": None} if self.with_logprobs else None
        return self._event(choice, {"content": word}, None, logprobs)

    def last_event(self, choice: int) -> bytes:
        return self._event(choice, {}, self.finish_reason)

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
                message["content"] = "".join(w for i, w in enumerate(words) if not self.is_thought(i))
                if self.thinks:
                    message["reasoning_content"] = "".join(w for i, w in enumerate(words) if self.is_thought(i))
                if self.with_logprobs:
                    logprobs = {"content": [logprob(w, self.top) for w in words], "refusal": None}
            rows.append({"index": choice, "message": message, "logprobs": logprobs, "finish_reason": self.finish_reason})
        return {**self.frame, "object": "chat.completion", "choices": rows, "usage": self.usage(count)}


class FakeCompletions(_ChunkedResponse):
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

    def last_event(self, choice: int) -> bytes:
        return self._event(choice, "", self.finish_reason, None)

    def whole(self, count: int) -> Json:
        rows = [
            {
                "index": c,
                "text": self.text(c, count),
                "logprobs": self._logprobs(c, range(count)),
                "finish_reason": self.finish_reason,
            }
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

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self.sequence, **fields}
        self.sequence += 1
        return sse(event, kind)

    def _item(self, count: int | None) -> Json:
        status = "in_progress" if count is None else "completed" if self.finish_reason == "stop" else "incomplete"
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
            self._event("response.created", response=self._response("in_progress", [], None)),
            self._event("response.in_progress", response=self._response("in_progress", [], None)),
            self._event("response.output_item.added", output_index=0, item=self._item(None)),
        ]
        if not self.tool:
            part = {"type": "output_text", "text": "", "annotations": []}
            location = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
            events.append(self._event("response.content_part.added", **location, part=part))
        return events

    def token(self, choice: int, index: int) -> bytes:
        if self.tool:
            kind = "response.function_call_arguments.delta"
            return self._event(kind, item_id=f"fc_{self.id}", output_index=0, delta=self.argument(index))
        location = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", **location, delta=self.word(0, index), logprobs=[])

    def closing(self, count: int) -> list[bytes]:
        events = []
        if self.tool:
            arguments = self._item(count)["arguments"]
            kind = "response.function_call_arguments.done"
            events.append(self._event(kind, item_id=f"fc_{self.id}", name=self.tool, output_index=0, arguments=arguments))
        else:
            location = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
            text = self.text(0, count)
            events.append(self._event("response.output_text.done", **location, text=text, logprobs=[]))
            part = {"type": "output_text", "text": text, "annotations": []}
            events.append(self._event("response.content_part.done", **location, part=part))
        events.append(self._event("response.output_item.done", output_index=0, item=self._item(count)))
        last = "response.completed" if self.finish_reason == "stop" else "response.incomplete"
        events.append(self._event(last, response=self.whole(count)))
        return events

    def whole(self, count: int) -> Json:
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + count,
        }
        status = "completed" if self.finish_reason == "stop" else "incomplete"
        return self._response(status, [self._item(count)], usage)

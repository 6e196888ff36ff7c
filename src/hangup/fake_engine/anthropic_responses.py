"""The answers of Anthropic's messages API."""

from __future__ import annotations

import orjson

from hangup.fake_engine.response import FakeResponse, Json, sse


class FakeMessages(FakeResponse):
    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        tools = request.get("tools") or []
        self.tool = tools[0].get("name") if tools else None

    def count_choices(self) -> int:
        return 1

    def _stop_reason(self) -> str:
        return {"stop": "tool_use" if self.tool else "end_turn"}.get(self.finish_reason, "max_tokens")

    def _message(self, content: list[Json], stop: str | None, tokens_out: int) -> Json:
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": tokens_out}
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
            is_complete = arguments.endswith('"}')
            block = {
                "type": "tool_use",
                "id": f"toolu_{self.seed}",
                "name": self.tool,
                "input": orjson.loads(arguments) if is_complete else {},
            }
        return self._message([block], self._stop_reason(), count)

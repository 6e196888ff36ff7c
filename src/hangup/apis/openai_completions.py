"""OpenAI text completions: POST /v1/completions."""

from __future__ import annotations

from hangup.apis.base import Ask, Assembler, Caps, Draft, Json, apply_caps, count_choices, expect, merge
from hangup.apis.openai_chat import OpenAIStream, streaming_fields
from hangup.config import Limits


class OpenAICompletions(OpenAIStream):
    name = "openai.completions"
    caps = Caps(("max_tokens",))

    def read(self, path: str, body: bytes, value: Json, limits: Limits, assemble: bool) -> Ask:
        expect(value, {"model": (str,), "prompt": (str, list), "stream": (bool,), "stream_options": (dict,)})
        changes, cap = apply_caps(self.caps, value, limits)
        choices = count_choices(value, ("n", "best_of"), count_prompts(value.get("prompt")), limits)
        stream = bool(value.get("stream"))
        return Draft(path, body, value, changes).ask(
            model=value.get("model") or "",
            stream=stream,
            choices=choices,
            cap=cap,
            assembler=CompletionAssembler() if assemble and not stream else None,
            to_stream=streaming_fields(value),
        )

    def weigh(self, event: Json) -> int:
        return sum(1 for c in event.get("choices") or [] if c.get("text"))

    def closing_choice(self, index: int) -> Json:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": "length"}


def count_prompts(prompt: object) -> int:
    """A prompt is a text, a list of token ids, or a list of either."""
    if type(prompt) is list and prompt and type(prompt[0]) is not int:
        return len(prompt)
    return 1


class CompletionAssembler(Assembler):
    """Joins the texts of each choice."""

    def __init__(self) -> None:
        self._answer: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        for key, value in event.items():
            if key != "choices" and (value is not None or key not in self._answer):
                self._answer[key] = value
        for choice in event.get("choices") or []:
            mine = self._choices.setdefault(choice.get("index", 0), {"text": ""})
            merge(mine, {k: v for k, v in choice.items() if k != "index"})
            self.finished = self.finished or bool(choice.get("finish_reason"))

    def result(self, capped: bool) -> Json:
        choices = []
        for index in sorted(self._choices):
            choice = self._choices[index]
            choice.setdefault("logprobs", None)
            if capped and not choice.get("finish_reason"):
                choice["finish_reason"] = "length"
            choices.append({"index": index, **choice})
        answer = {k: v for k, v in self._answer.items() if k != "usage"}
        answer["object"] = "text_completion"
        answer["choices"] = choices
        if self._answer.get("usage") is not None:
            answer["usage"] = self._answer["usage"]
        return answer

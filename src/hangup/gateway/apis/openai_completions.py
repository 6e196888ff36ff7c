"""OpenAI text completions: POST /v1/completions."""

from __future__ import annotations

from hangup.config import CallLimits
from hangup.gateway.apis.base import Ask, Caps, Json, count_answers, count_prompts, marks, merge_choice
from hangup.gateway.apis.openai_chat import ChoicesAssembler, OpenAIStream, adds_only_text, streaming_fields


class OpenAICompletions(OpenAIStream):
    name = "openai.completions"
    paths = {"/v1/completions": ("POST",)}
    caps = Caps(("max_tokens",), minima=("min_tokens",))
    fields = {"model": (str,), "prompt": (str, list), "stream": (bool,), "stream_options": (dict,)}
    text_marks = marks("text")
    text_mark = b'"text":"'

    def count_choices(self, value: Json, limits: CallLimits) -> int:
        embeds = value.get("prompt_embeds")  # vLLM's own kind of prompts, in addition to the others or instead of them
        more = 0 if embeds is None else len(embeds) if type(embeds) is list else 1
        prompts = count_prompts(value.get("prompt")) if value.get("prompt") is not None or not more else 0
        return count_answers(value, ("n", "best_of"), prompts + more, limits)

    def read(self, path: str, value: Json, limits: CallLimits, assemble: bool) -> Ask:
        ask = super().read(path, value, limits, assemble)
        ask.spare_tokens = ask.choices if value.get("echo") else 0
        return ask

    def set_assembly(self, ask: Ask, value: Json) -> None:
        ask.assembler, ask.to_stream = CompletionAssembler(), streaming_fields(value)

    def weigh(self, event: Json) -> int:
        return sum(1 for choice in event.get("choices") or () if choice.get("text"))

    def is_all_text(self, event: Json) -> bool:
        return adds_only_text(event, "text")

    def shows_progress(self, event: Json) -> bool:
        return self.is_last(event)

    def closing_choice(self, index: int) -> Json:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": "length"}


class CompletionAssembler(ChoicesAssembler):
    object = "text_completion"

    def new_choice(self) -> Json:
        return {"text": ""}

    def add_choice(self, mine: Json, choice: Json) -> None:
        merge_choice(mine, choice, "text")

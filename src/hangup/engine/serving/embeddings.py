"""OpenAI's POST /v1/embeddings. A text's vector is the mean of the model's last states over its tokens, with length 1."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import numpy as np
import orjson

from hangup.core import reasons
from hangup.engine.model import Floats, Model
from hangup.engine.request import Busy, Event, GenerationEnded, SubmittedRequest, Unfit, Vector
from hangup.engine.serving.call import EngineCall, respond
from hangup.engine.serving.requests import bad, tokens_of
from hangup.errors import Refusal

INPUTS_MAX = 2048  # OpenAI's limit


def read_inputs(body: dict[str, Any]) -> list[Any]:
    """Return the texts or token lists. `read_input` checks each of them later, when there is room for it."""
    given = body.get("input")
    if body.get("dimensions") is not None:
        raise Refusal(reasons.BAD_FIELD, "dimensions is not supported by this engine.")
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise bad("encoding_format", "float or base64")
    inputs = given if isinstance(given, list) and not all(isinstance(token, int) for token in given) else [given]
    if len(inputs) > INPUTS_MAX:
        raise bad("input", f"made of up to {INPUTS_MAX} texts")
    return inputs


def read_input(text: Any, model: Model, name: str) -> SubmittedRequest:
    prompt = tokens_of(text, model, "input")
    if not 0 < len(prompt) < model.context:
        detail = f"input: a text has {len(prompt)} tokens; the context allows 1 to {model.context - 1}."
        raise Refusal(reasons.BAD_FIELD, detail)
    return SubmittedRequest(prompt=tuple(prompt), tokens_max=1, embed=True, name=name)


class EmbeddingsCall(EngineCall):
    """Parses and submits its texts as there is room, at most as many at a time as the engine has slots.

    So thousands of texts neither fill the queue nor block the event loop.
    """

    def _begin(self, body: dict[str, Any]) -> None:
        self._inputs = read_inputs(body)
        self._base64 = body.get("encoding_format") == "base64"
        self._next = 0
        self._next_request: SubmittedRequest | None = None  # the next request, parsed but not yet submitted
        self._in_engine = 0
        self._tokens = 0
        self._vectors: dict[int, Floats] = {}
        self._check_deadline([self._read_next()])
        self._server.add_call(self)
        try:
            self._submit()
        except (Busy, Unfit, Refusal):
            self._release()
            raise

    def _read_next(self) -> SubmittedRequest:
        if self._next_request is None:
            self._next_request = read_input(self._inputs[self._next], self._server.runner.model, self.id)
        return self._next_request

    def _submit(self) -> None:
        """Submit as many texts as fit. Raises `Busy` if none fits and none of this call's texts, once done, would make room."""
        while self._next < len(self._inputs) and self._in_engine < self._server.options.slots:
            request = self._read_next()
            try:
                self._tickets.append(self._server.runner.submit(request, partial(self._on_event, self._next)))
            except Busy:
                if self._in_engine:
                    return
                raise
            self._next_request = None
            self._next += 1
            self._in_engine += 1
            self._tokens += len(request.prompt)

    def _on_event(self, index: int, event: Event) -> None:
        if self._released:
            return  # the event was under way when the client hung up
        if isinstance(event, Vector):
            self._vectors[index] = event.values
            return
        assert isinstance(event, GenerationEnded)
        self._in_engine -= 1
        if event.reason != "stop":
            failed = event.reason == "failed"
            self._give_up(reasons.ENGINE_ERROR if failed else reasons.ENGINE_CANCELLED, 500 if failed else 0)
            return
        try:
            self._submit()
        except Busy as busy:
            self.refuse(reasons.QUEUE_FULL, str(busy))
        except Unfit as unfit:
            self.refuse(reasons.BAD_FIELD, str(unfit))
        except Refusal as refusal:
            self.refuse(refusal.reason, refusal.detail)
        if len(self._vectors) == len(self._inputs) and not self._released:
            self._complete()

    def _complete(self) -> None:
        self._finish_call()
        rows = [
            {"object": "embedding", "index": index, "embedding": self._encode_vector(self._vectors[index])}
            for index in range(len(self._inputs))
        ]
        answer = {
            "object": "list",
            "data": rows,
            "model": self._server.runner.model.name,
            "usage": {"prompt_tokens": self._tokens, "total_tokens": self._tokens},
        }
        respond(self._client, 200, orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), self.id)

    def _encode_vector(self, values: Floats) -> str | Floats:
        return base64.b64encode(values.astype(np.dtype("<f4")).tobytes()).decode() if self._base64 else values

"""Calls that generate text. Each API adds only a parser for the request and a shape for the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hangup.core import reasons
from hangup.engine.model import Model
from hangup.engine.request import Busy, Choice, Event, GenerationEnded, Progress, Unfit
from hangup.engine.serving.answers import AnswerShape, ChatAnswer, CompletionAnswer
from hangup.engine.serving.call import EngineCall, closing_headers, respond
from hangup.engine.serving.requests import ParsedRequest, read_chat, read_completion
from hangup.gateway.http.answer import encode_head
from hangup.gateway.http.head import Headers

_SSE = b"text/event-stream; charset=utf-8"


class GenerationCall(EngineCall):
    read: Callable[[dict[str, Any], Model, int, str], ParsedRequest]  # subclasses set it, as a static method

    def _begin(self, body: dict[str, Any]) -> None:
        server, model = self._server, self._server.runner.model
        self._parsed = type(self).read(body, model, server.options.slots, self.id)
        self._answer = self.shape(self.id, model.name, model.tokenizer, self._parsed)
        self._texts: list[list[str]] = [[] for _ in self._parsed.requests]
        self._choices: list[list[Choice]] = [[] for _ in self._parsed.requests]
        self._ends: dict[int, GenerationEnded] = {}
        self._check_deadline(self._parsed.requests)
        server.add_call(self)
        try:
            for index, request in enumerate(self._parsed.requests):
                self._tickets.append(server.runner.submit(request, partial(self._on_event, index)))
        except (Busy, Unfit):
            self._release()
            raise
        if self._parsed.stream:
            self._open_stream()

    def _open_stream(self) -> None:
        client = self._client
        headers: Headers = [
            (b"content-type", _SSE),
            (b"cache-control", b"no-cache, no-transform"),
            (b"x-accel-buffering", b"no"),
        ]
        if client.http11:
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            client.close_after_this()
        self._streaming = True
        client.begin(encode_head(200, [*headers, *closing_headers(client, self.id)]), chunked=client.http11)
        opening = self._answer.opening()
        if opening:
            client.send(opening)
        else:
            client.flush()

    def _on_event(self, index: int, event: Event) -> None:
        if self._released:
            return  # the event was under way when the client hung up
        if isinstance(event, Progress):
            if self._streaming:
                if event.text or event.choices:
                    self._client.send(self._answer.event(index, event.text, event.choices))
            else:
                self._texts[index].append(event.text)
                self._choices[index] += event.choices
            return
        assert isinstance(event, GenerationEnded)
        self._ends[index] = event
        if event.reason == "failed":
            self._give_up(reasons.ENGINE_ERROR, 500)
            return
        if event.reason == "cancelled" and not self.shape.reports_cancelled:
            self._give_up(reasons.ENGINE_CANCELLED)
            return
        if self._streaming:
            self._client.send(self._answer.closing(index, event))
        if len(self._ends) == len(self._tickets):
            self._complete()

    def _complete(self) -> None:
        ends = [self._ends[index] for index in range(len(self._ends))]
        self._finish_call()
        if self._streaming:
            last = self._answer.last(ends)
            if last:
                self._client.send(last)
            self._client.finish()
        else:
            texts = ["".join(text) for text in self._texts]
            respond(self._client, 200, self._answer.whole(texts, self._choices, ends), self.id)


class ChatCall(GenerationCall):
    shape: type[AnswerShape] = ChatAnswer
    read = staticmethod(read_chat)


class CompletionCall(GenerationCall):
    shape: type[AnswerShape] = CompletionAnswer
    read = staticmethod(read_completion)

"""Runs the engine in its own thread for an event loop, and loads the models that the options name."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hangup.engine.engine import Engine, OnEvent, Outbox, Submission
from hangup.engine.model import Model
from hangup.engine.numpy_model import NumpyModel
from hangup.engine.options import EngineOptions
from hangup.engine.request import SubmittedRequest
from hangup.engine.weights import BUILT_IN
from hangup.errors import ConfigError
from hangup.tasks import TASKS

_LOG = logging.getLogger("hangup.engine")
_STOP_S_MAX = 30.0  # how long `stop` waits for the forward that is running


class EngineRunner:
    """The event loop's handle on an engine. Call its methods from the loop's thread; `Submission.cancel` from any."""

    def __init__(self, options: EngineOptions, loop: asyncio.AbstractEventLoop) -> None:
        model, draft = load_models(options)
        self.options = options
        self._loop = loop
        self._engine = Engine(model, options, self._post, draft)
        self._thread: threading.Thread | None = None
        self.model = self._engine.model

    def start(self) -> None:
        self._thread = TASKS.thread_once("engine", self._run)

    def submit(self, request: SubmittedRequest, on_event: OnEvent) -> Submission:
        return self._engine.submit(request, on_event)

    def stop(self) -> None:
        """End every call as cancelled and join the thread."""
        self._engine.mailbox.close()
        if self._thread is not None:
            self._thread.join(_STOP_S_MAX)

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def counters(self) -> dict[str, float]:
        """Return the counters so far; `waiting`, `running` and `blocks_free` are current values."""
        scheduler = self._engine.scheduler
        now = {"waiting": len(scheduler.waiting), "running": len(scheduler.running), "blocks_free": scheduler.pool.free}
        return {**asdict(self._engine.counters), **now}

    def least_s(self, requests: list[SubmittedRequest]) -> float:
        """Estimate the least time for these requests at the pace so far: their prompts, and the tokens they must generate."""
        counters = self._engine.counters
        if not counters.steps:
            return 0.0
        each = counters.busy_seconds / counters.steps
        tokens = max((r.tokens_max if r.ignore_eos and not r.stop else 1 for r in requests), default=1)
        at_a_time = 1 if self.options.spec == "off" else 1 + self.options.draft_tokens_max
        prompts = -(-sum(len(r.prompt) for r in requests) // self.options.prefill_tokens_max)
        return each * (prompts + tokens / at_a_time)

    def calls(self) -> dict[str, int]:
        """Return every waiting or running call by id, with the tokens of its answers so far."""
        found: dict[str, int] = {}
        scheduler = self._engine.scheduler
        for sequence in (*list(scheduler.waiting), *scheduler.running):
            name = sequence.request.name
            found[name] = found.get(name, 0) + sequence.answered
        return found

    def cut(self) -> dict[str, int]:
        """Return the most recently cancelled calls by id, with the tokens of their answers."""
        return dict(self._engine.cut)

    def status(self) -> list[dict[str, Any]]:
        """Return what each slot does. The engine runs meanwhile: each row is true, but not all rows at the same moment."""
        rows = []
        for slot, sequence in enumerate(list(self._engine.scheduler.slots)):
            row: dict[str, Any] = {"id": slot, "is_processing": sequence is not None}
            if sequence is not None:
                row |= {
                    "call": sequence.request.name,
                    "n_prompt_tokens": len(sequence.request.prompt),
                    "n_prompt_tokens_processed": min(sequence.cached, len(sequence.request.prompt)),
                    "n_decoded": sequence.answered,
                    "n_drafted": sequence.drafted,
                    "n_accepted": sequence.accepted,
                }
            rows.append(row)
        return rows

    def _run(self) -> None:
        engine = self._engine
        while not engine.mailbox.closed:
            try:
                if not engine.step():
                    engine.mailbox.wait()
            except Exception:
                # Whatever a model raises (out of memory, a lost device), no call may hang.
                _LOG.exception("the model failed; all calls in the engine failed with it")
                engine.end_all("failed")
        engine.end_all("cancelled")

    def _post(self, outbox: Outbox) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_dispatch, outbox, self._loop)


def _dispatch(outbox: Outbox, loop: asyncio.AbstractEventLoop) -> None:
    """Deliver the events of a step. A bug in one call must not cost another call its end."""
    for on_event, event in outbox:
        try:
            on_event(event)
        except Exception as error:
            loop.call_exception_handler({"message": "the event of a call was not taken", "exception": error})


def load_models(options: EngineOptions) -> tuple[Model, Model | None]:
    """Load the model, and the draft model if the options ask for one."""
    model, draft = _load(options)
    model.context = min(model.context, options.context_max)
    return model, draft


def _load(options: EngineOptions) -> tuple[Model, Model | None]:
    if not options.model:
        draft = NumpyModel(BUILT_IN / "draft", "hangup-shakespeare-draft") if options.spec == "draft" else None
        return NumpyModel(), draft
    try:
        from hangup.engine.torch_model import TorchModel  # noqa: PLC0415 (heavy, and optional)
    except ImportError as error:
        raise ConfigError([f"model: {error}\n  hint: pip install 'hangup[torch]'"]) from None
    model = TorchModel.load(Path(options.model), options.device)
    wanted = options.spec == "draft" and options.draft_model
    return model, TorchModel.load(Path(options.draft_model), options.device) if wanted else None

"""An application with a real engine inside it, in the engine's own environment: `python inside.py ENGINE DIR`.

Each engine counts the steps that its model computes: for the answer and, as one or more, for the prompt. One call at a time.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

from fastapi import FastAPI, Request

import hangup
import hangup.sources
from library.served import ENGINE, listening, state

CACHE = Path(sys.argv[2])
VLLM_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
app = FastAPI()
current = [""]  # the id of the call that the model's steps are for


def step(*_: Any) -> None:
    ENGINE.work(current[0]).computed += 1


class Transformers:
    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(CACHE / "hf")
        self.model = AutoModelForCausalLM.from_pretrained(CACHE / "hf")
        self.model.register_forward_hook(step)

    def options(self, prompt: str, tokens: int) -> dict[str, Any]:
        inputs = self.tokenizer(prompt, return_tensors="pt")
        return {**inputs, "max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True}

    def source(self, prompt: str, tokens: int) -> Any:
        options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True}
        return hangup.sources.transformers(self.model, self.tokenizer, self.tokenizer(prompt, return_tensors="pt"), **options)

    def streamer(self, prompt: str, tokens: int, token: hangup.CancelToken) -> Any:
        from transformers import TextIteratorStreamer

        return self._generate(TextIteratorStreamer(self.tokenizer, skip_prompt=True), prompt, tokens, token)

    def async_streamer(self, prompt: str, tokens: int, token: hangup.CancelToken) -> Any:
        from transformers import AsyncTextIteratorStreamer

        return self._generate(AsyncTextIteratorStreamer(self.tokenizer, skip_prompt=True), prompt, tokens, token)

    def _generate(self, streamer: Any, prompt: str, tokens: int, token: hangup.CancelToken) -> Any:
        options = {**self.options(prompt, tokens), "streamer": streamer, "stopping_criteria": [token]}
        Thread(target=self.model.generate, kwargs=options, name="hangup-test-generate").start()
        return streamer

    def whole(self, prompt: str, tokens: int, token: hangup.CancelToken) -> str:
        (answer,) = self.model.generate(**self.options(prompt, tokens), stopping_criteria=[token])
        return str(self.tokenizer.decode(answer))


class LlamaCpp:
    def __init__(self) -> None:
        from llama_cpp import Llama

        self.llm = Llama(str(CACHE / "tiny.gguf"), n_ctx=16384, n_threads=1, n_threads_batch=1, verbose=False)
        self.options = {"logit_bias": {str(self.llm.token_eos()): -100.0}, "temperature": 1.0}
        evaluate = self.llm.eval

        def counted(tokens: Any) -> None:
            evaluate(tokens)
            step()

        self.llm.eval = counted

    def source(self, prompt: str, tokens: int) -> Any:
        return hangup.sources.llama_cpp(self.llm, [{"role": "user", "content": prompt}], max_tokens=tokens, **self.options)

    def whole(self, prompt: str, tokens: int, token: hangup.CancelToken) -> str:
        answer = self.llm.create_completion(prompt, max_tokens=tokens, stopping_criteria=token, **self.options)
        return str(answer["choices"][0]["text"])


class MlxLm:
    def __init__(self) -> None:
        from mlx_lm import load

        self.model, self.tokenizer = load(str(CACHE / "hf"))
        kind = type(self.model)

        class Counting(kind):  # type: ignore[misc, valid-type]
            def __call__(self, *arguments: Any, **named: Any) -> Any:
                step()
                return super().__call__(*arguments, **named)

        self.model.__class__ = Counting
        self.tokenizer.eos_token_ids = set()

    def source(self, prompt: str, tokens: int) -> Any:
        return hangup.sources.mlx_lm(self.model, self.tokenizer, prompt, max_tokens=tokens)


class Vllm:
    """Counts what comes from vLLM's core, which is another process."""

    def __init__(self) -> None:
        self.engine: Any = None

    def source(self, prompt: str, tokens: int) -> Any:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=tokens, min_tokens=tokens)
        return hangup.sources.vllm(self._counted(), prompt, params)

    def start(self) -> None:
        os.environ |= VLLM_SETTINGS
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        sizes = {"max_model_len": 8192, "max_num_seqs": 4, "enforce_eager": True, "distributed_executor_backend": "uni"}
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(CACHE / "hf"), **sizes))

    def _counted(self) -> Any:
        """The engine, whose core's outputs are counted: also those that nobody waits for any more."""
        processor = self.engine.output_processor
        if not hasattr(processor, "counted"):
            process = processor.process_outputs

            def counted(outputs: Any, *arguments: Any, **named: Any) -> Any:
                for _ in outputs:
                    step()
                return process(outputs, *arguments, **named)

            processor.counted, processor.process_outputs = True, counted
        return self.engine


ENGINES: dict[str, Callable[[], Any]] = {
    "transformers": Transformers,
    "llama_cpp": LlamaCpp,
    "mlx_lm": MlxLm,
    "vllm": Vllm,
}
engine = ENGINES[sys.argv[1]]()


def begun(id: str) -> Any:
    current[0], work = id, ENGINE.work(id)
    work.running = True

    def on_end(ended: hangup.Ended) -> None:
        work.running = False
        work.ended.append(asdict(ended))

    return on_end


@app.post("/source")
async def source(request: Request, id: str, tokens: int, words: int = 1) -> Any:
    return hangup.stream(request, engine.source("word " * words, tokens), on_end=begun(id))


@app.post("/streamer")
async def streamer(request: Request, id: str, tokens: int, words: int = 1) -> Any:
    token = hangup.CancelToken()
    return hangup.stream(request, engine.streamer("word " * words, tokens, token), token=token, on_end=begun(id))


@app.post("/async_streamer")
async def async_streamer(request: Request, id: str, tokens: int, words: int = 1) -> Any:
    token = hangup.CancelToken()
    return hangup.stream(request, engine.async_streamer("word " * words, tokens, token), token=token, on_end=begun(id))


@app.post("/whole")
async def whole(request: Request, id: str, tokens: int, words: int = 1) -> str:
    on_end = begun(id)
    return await hangup.run(request, lambda token: engine.whole("word " * words, tokens, token), on_end=on_end)


@app.get("/state")
async def show() -> Any:
    return state()


async def main() -> None:
    import uvicorn

    if isinstance(engine, Vllm):
        engine.start()  # it needs the event loop
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listening()])


if __name__ == "__main__":
    asyncio.run(main())

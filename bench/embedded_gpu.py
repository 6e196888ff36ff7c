"""The embedded engine on a GPU: a random Llama of 1 B beside transformers, speculation, cancels, and the cost spike.

usage: PYTHONPATH=src:. python -m bench.embedded_gpu OUT        (needs torch with CUDA, safetensors, transformers)

Writes OUT/gpu.json and OUT/spike.csv, from which tools/plots.py makes the plots of docs/.
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from bench.embedded import Running, cancels, make, next_in_line, throughput
from hangup.engine.engine import Engine, Submission
from hangup.engine.model import Model
from hangup.engine.options import EngineOptions
from hangup.engine.request import Busy, Event, GenerationEnded, Progress, SubmittedRequest
from hangup.engine.tokenizer import Bpe
from hangup.engine.torch_model import TorchModel
from hangup.engine.weights import BUILT_IN, ModelShape

LLAMA_1B = {  # the shape of Llama 3.2 1B, with a vocabulary of 32,000
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
DRAFT = {**LLAMA_1B, "num_hidden_layers": 1}


def random_tensors(config: dict[str, Any], *, foreseeable: bool) -> dict[str, torch.Tensor]:
    """Return random weights. With `foreseeable`, each token depends only on the one before it, at the full cost of a forward,
    and the MTP head knows this: the best case of speculation, by construction.
    """
    torch.manual_seed(5)
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    quiet = 0.0 if foreseeable else 0.02

    def matrix(rows: int, columns: int, scale: float = 0.02) -> torch.Tensor:
        return (torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * scale).contiguous()

    ones = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], width), "model.norm.weight": ones}
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        tensors |= {
            prefix + "input_layernorm.weight": ones,
            prefix + "post_attention_layernorm.weight": ones,
            prefix + "self_attn.q_proj.weight": matrix(heads * config["head_dim"], width),
            prefix + "self_attn.k_proj.weight": matrix(kv, width),
            prefix + "self_attn.v_proj.weight": matrix(kv, width),
            prefix + "self_attn.o_proj.weight": matrix(width, heads * config["head_dim"], quiet),
            prefix + "mlp.gate_proj.weight": matrix(inner, width),
            prefix + "mlp.up_proj.weight": matrix(inner, width),
            prefix + "mlp.down_proj.weight": matrix(width, inner, quiet),
        }
    if foreseeable:
        tensors |= _foreseeing(tensors["model.embed_tokens.weight"])
    return tensors


def _foreseeing(embedding: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return an output layer that makes tokens run in circles of eight, and an MTP head that passes on the token's embedding.

    silu(100 x) * x is a square for x > 0 and almost nothing below, so each coordinate passes with either sign; the result
    points to the same embedding, and norms make its scale irrelevant. The state, which would still hold the embedding of the
    previous token, is subtracted in the same way.
    """
    width = embedding.shape[1]
    tokens = torch.arange(len(embedding), device="cuda")
    before = tokens // 8 * 8 + (tokens - 1) % 8
    eye = torch.eye(width, device="cuda", dtype=torch.bfloat16)
    none = torch.zeros_like(eye)
    state, token = torch.cat([eye, none], 1), torch.cat([none, eye], 1)
    ones = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    return {
        "lm_head.weight": embedding[before].contiguous(),
        "mtp.state_norm.weight": ones,
        "mtp.token_norm.weight": ones,
        "mtp.mlp.gate_proj.weight": torch.cat([token, -token, state, -state]) * 100,
        "mtp.mlp.up_proj.weight": torch.cat([token, -token, state, -state]),
        "mtp.mlp.down_proj.weight": torch.cat([eye, -eye, -0.43 * eye, 0.43 * eye], 1) * 100,
    }


def load_random(config: dict[str, Any], *, foreseeable: bool) -> TorchModel:
    shape = ModelShape.of(config)
    return TorchModel(shape, random_tensors(config, foreseeable=foreseeable), _NoText(), "random-llama", "cuda")


class _NoText(Bpe):
    """A tokenizer without text, which random tokens do not need."""

    def __init__(self) -> None:
        super().__init__([])

    def decoder(self) -> Any:
        return self

    def push(self, token: int) -> str:
        return "x"


def our_rates(model: Model, specs: tuple[str, ...], streams: int, tokens: int) -> dict[str, Any]:
    rates = {}
    for spec in specs:
        engine = make(EngineOptions(slots=streams, spec=spec, prefill_tokens_max=2048), model)
        throughput(engine, streams, 128, tokens)  # captures the graphs
        rates[spec] = max((throughput(engine, streams, 128, tokens) for _ in range(2)), key=lambda row: row["tokens_per_s"])
        print(f"{streams} streams, {spec}: {rates[spec]}", flush=True)
    return rates


def transformers_rate(streams: int, tokens: int) -> dict[str, float]:
    """Measure the same Llama under transformers' continuous batching."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(**{key: value for key, value in LLAMA_1B.items() if key != "model_type"})
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    chance = random.Random(0)
    prompts = [chance.choices(range(32000), k=128) for _ in range(streams)]
    settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    rates: dict[str, float] = {}
    for attention in ("sdpa", "eager"):
        try:
            model.set_attn_implementation(attention)
            model.generate_batch(prompts, generation_config=settings)
            began = time.perf_counter()
            found = model.generate_batch(prompts, generation_config=settings)
            seconds = time.perf_counter() - began
            generated = sum(len(output.generated_tokens) for output in found.values())
            rates[attention] = generated / seconds
        except Exception as error:  # what works there differs by version; measure whatever works
            print(f"transformers, {attention}: {type(error).__name__}: {error}", flush=True)
    began = time.perf_counter()
    with torch.inference_mode():
        generated = model.generate(torch.tensor(prompts, device="cuda"), generation_config=settings).shape[1] - 128
    rates["generate, one static batch"] = streams * generated / (time.perf_counter() - began)
    print(f"transformers: {rates}", flush=True)
    return rates


PHASES = (("nobody leaves", 0.0, False), ("half leave, without", 0.5, False), ("half leave, with", 0.5, True))


class Crowd:
    """Clients that ask again and again; some disconnect early. The engine learns of this only if `cancelling`."""

    def __init__(self, engine: Engine, clients: int, tokens: int, leaving: float) -> None:
        self.engine, self.tokens, self.leaving = engine, tokens, leaving
        self.cancelling = False
        self.completed = self.hung_up = self.wasted = 0
        self._chance = random.Random(3)
        self._lock = threading.Lock()
        self._count = 0
        self._clients = clients
        self.stopped = False

    def start(self) -> None:
        for _ in range(self._clients):
            self.request()

    def request(self) -> None:
        if self.stopped:
            return
        with self._lock:
            self._count += 1
            leaves = self._chance.random() < self.leaving
            patience = self._chance.randrange(1, self.tokens // 4)
            prompt = tuple(self._chance.choices(range(self.engine.model.vocab), k=128))
            seed = self._count
        seen = {"tokens": 0, "gone": False}
        holder: list[Submission] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Progress):
                seen["tokens"] += event.tokens
                if seen["gone"]:
                    self.wasted += event.tokens
                elif leaves and seen["tokens"] >= patience:
                    seen["gone"] = True
                    self.hung_up += 1
                    if self.cancelling:
                        holder[0].cancel()
                    self.request()  # a refresh: the same person again
            elif isinstance(event, GenerationEnded) and not seen["gone"]:
                self.completed += event.reason == "length"
                self.request()

        request = SubmittedRequest(prompt=prompt, tokens_max=self.tokens, temperature=0.0, seed=seed, ignore_eos=True)
        try:
            holder.append(self.engine.submit(request, on_event))
        except Busy:
            threading.Timer(0.2, self.request).start()


def spike(model: Model, out: Path, phase_s: float) -> dict[str, Any]:
    """Run three phases at one load: nobody leaves; half leave and the engine is not told; half leave and hangup cancels."""
    engine = make(EngineOptions(slots=32, waiting_max=512, prefill_tokens_max=2048), model)
    throughput(engine, 32, 128, 64)
    rows: list[list[float]] = []
    results: dict[str, Any] = {}
    crowd = Crowd(engine, 48, 512, 0.0)
    with Running(engine), _Utilisation() as utilisation:
        crowd.start()
        time.sleep(3)
        began = time.perf_counter()
        for name, leaving, cancelling in (
            ("nobody leaves", 0.0, False),
            ("half leave, without", 0.5, False),
            ("half leave, with", 0.5, True),
        ):
            crowd.leaving, crowd.cancelling = leaving, cancelling
            time.sleep(2)  # until the change takes effect
            mark, wasted, gpu, start = crowd.completed, crowd.wasted, len(utilisation.samples), time.perf_counter()
            before = mark
            while time.perf_counter() - start < phase_s:
                time.sleep(1)
                rows.append([time.perf_counter() - began, crowd.completed - before, utilisation.last])
                before = crowd.completed
            seconds = time.perf_counter() - start
            samples = utilisation.samples[gpu:] or [0.0]
            results[name] = {
                "completed_per_s": (crowd.completed - mark) / seconds,
                "wasted_tokens_per_s": (crowd.wasted - wasted) / seconds,
                "gpu_utilisation": sum(samples) / len(samples),
            }
            print(name, results[name], flush=True)
        crowd.stopped = True
    with (out / "spike.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["second", "completed_per_s", "gpu_utilisation"])
        writer.writerows([[f"{second:.1f}", f"{done:.0f}", f"{used:.0f}"] for second, done, used in rows])
    return results


class _Utilisation:
    """The GPU's utilisation from NVML, five times a second."""

    def __enter__(self) -> _Utilisation:
        self.samples: list[float] = []
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def last(self) -> float:
        return self.samples[-1] if self.samples else 0.0

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.samples.extend(float(line) for line in self._process.stdout)


def main() -> None:
    out = Path(sys.argv[1])
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def keep(name: str, value: Any) -> None:
        results[name] = value
        (out / "gpu.json").write_text(json.dumps(results, indent=1))

    small = TorchModel.load(BUILT_IN, "cuda")
    keep("built-in model, 8 streams", our_rates(small, ("off", "mtp"), 8, 300))
    keep("random", _random_llama(out))
    keep("foreseeable", _foreseeable_llama())
    keep("transformers, 32 streams", transformers_rate(32, 256))


def _random_llama(out: Path) -> dict[str, Any]:
    model, draft = load_random(LLAMA_1B, foreseeable=False), load_random(DRAFT, foreseeable=False)
    results: dict[str, Any] = {
        "32 streams": our_rates(model, ("off", "ngram"), 32, 256),
        "1 stream": our_rates(model, ("off",), 1, 256),
        "spike": spike(model, out, 15),
        "cancel": {},
    }
    for spec in ("off", "ngram", "draft"):
        results["cancel"][spec] = _cancel(make(EngineOptions(slots=32, spec=spec), model, draft))
    engine = make(EngineOptions(slots=2, prefill_tokens_max=256), model)
    results["cancel"]["prefill"] = cancels(engine, 1000, prompt=4000, tokens=90, wait_s=0.04)
    print(results["cancel"], flush=True)
    return results


def _foreseeable_llama() -> dict[str, Any]:
    model = load_random({**LLAMA_1B, "tie_word_embeddings": False}, foreseeable=True)
    results: dict[str, Any] = {
        "32 streams": our_rates(model, ("off", "ngram", "mtp"), 32, 256),
        "1 stream": our_rates(model, ("off", "ngram", "mtp"), 1, 256),
        "cancel, mtp": _cancel(make(EngineOptions(slots=32, spec="mtp"), model)),
        "next in line": next_in_line(make(EngineOptions(slots=2, spec="mtp", draft_tokens_max=2), model), 1000),
    }
    print(results["cancel, mtp"], results["next in line"], flush=True)
    return results


def _cancel(engine: Engine) -> dict[str, Any]:
    throughput(engine, 32, 16, 128)  # captures the graphs
    return cancels(engine, 1000, prompt=16, tokens=2000, wait_s=0.004)


if __name__ == "__main__":
    main()

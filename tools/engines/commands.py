"""The command that starts each real engine from its environment in the cache directory."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

COMMANDS = ("llamacpp", "transformers", "vllm")


@dataclass(frozen=True)
class Command:
    words: list[str]
    url: str
    model: str
    env: dict[str, str] = field(default_factory=dict)


def command(name: str, cache: Path, size: str = "tiny") -> Command:
    """Return the command of an engine; `size` is tiny or large: see sizes.py."""
    port = str(_free_port())
    url, model = f"http://127.0.0.1:{port}", str(cache / ("hf" if size == "tiny" else f"hf-{size}"))
    here = Path(__file__).resolve().parent
    match name:
        case "llamacpp":
            words = [f"{cache}/xl/bin/python", str(here / "serve_gguf.py"), str(cache / f"{size}.gguf"), port]
            return Command(words, url, "tiny")
        case "transformers":
            words = [f"{cache}/tf/bin/transformers", "serve", "--host", "127.0.0.1", "--port", port]
            words += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512"]
            return Command(words, url, model, {"HF_HUB_OFFLINE": "1"})
        case "vllm":
            words = [f"{cache}/vl/bin/vllm", "serve", model, "--host", "127.0.0.1", "--port", port, "--max-model-len", "8192"]
            words += ["--max-num-seqs", "4", "--enforce-eager", "--distributed-executor-backend", "uni"]
            env = {
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            }
            return Command(words, url, model, env)
    raise ValueError(name)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])

"""Jobs beside live clients on a GPU: time to the first token, alone and beside an endless batch.

usage: PYTHONPATH=src:tests:. python -m bench.gpu_jobs OUT      (needs torch with CUDA, safetensors, openai, httpx)

The embedded engine serves a random Llama of 1 B with 32 slots. Writes OUT/gpu_jobs.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.gpu_stops import CLIENTS, free_port, wait_for
from bench.jobs import PROMPT, beside_live
from support.processes import Gateway


def main(out: Path) -> None:
    port = free_port()
    engine = subprocess.Popen([sys.executable, "-m", "bench.gpu_stops", "engine", str(port)], text=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", engine)
        results = {}
        with Gateway(f"http://127.0.0.1:{port}", slots=CLIENTS, log="none") as gateway:
            for words in (1, 60, 240):  # a character is a token here
                prompt = PROMPT * words
                print(f"prompts of {len(prompt)} tokens", flush=True)
                beside_live(gateway, 200, rounds=1, prompt=prompt)  # captures the graphs
                results[len(prompt)] = beside_live(gateway, 200, prompt=prompt)
        (out / "gpu_jobs.json").write_text(json.dumps(results, indent=1))
    finally:
        engine.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

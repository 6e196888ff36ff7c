"""Sources for `hangup.stream`: engines and frameworks that run inside the application. `mcp_tool` is for `hangup.run`."""

from __future__ import annotations

from hangup.library.engines.blocking import llama_cpp, mlx_lm, transformers
from hangup.library.engines.chains import langchain, llama_index, mcp_tool
from hangup.library.engines.servers import sglang, vllm

__all__ = ["langchain", "llama_cpp", "llama_index", "mcp_tool", "mlx_lm", "sglang", "transformers", "vllm"]

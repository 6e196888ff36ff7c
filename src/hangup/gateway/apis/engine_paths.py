"""The engines' paths that the gateway passes on unchanged, and those that it refuses, with the reason.

Compiled from the sources of vLLM and SGLang (August 2026), with the additions of llama.cpp, TEI and Ollama. The gateway knows
nothing about an inference call here but that it runs: it takes a slot, and a hang-up closes its connection. A question costs an
engine next to nothing, so it bypasses the queue.
"""

from __future__ import annotations

from typing import Final

from hangup.gateway.apis.base import Api


class PlainApi(Api):
    """An API that is passed on unchanged."""

    def __init__(
        self, name: str, *, family: str = "openai", question: bool = False, media: bool = False, sized: bool = False
    ) -> None:
        self.name = name
        self.family = family  # engines with such paths have this API, too
        self.sized = sized
        self.question = question
        self.media = media


class HealthApi(Api):
    """Answered by the gateway itself: could a call be served now?"""

    name = "health"


HEALTH: Final = HealthApi()
_SCORE, _RERANK, _CLASSIFY = PlainApi("score", sized=True), PlainApi("rerank", sized=True), PlainApi("classify", sized=True)
_EMBED: Final = PlainApi("openai.embeddings", sized=True)
_OLLAMA_EMBED: Final = PlainApi("ollama.embed", family="ollama", sized=True)
_OLLAMA_INFO: Final = PlainApi("ollama.info", family="ollama", question=True)
_IMAGES, _IMAGE_FILES = PlainApi("openai.images"), PlainApi("openai.images", media=True)
_TOKENIZE, _INFO = PlainApi("tokenize", question=True), PlainApi("engine.info", question=True)
_POST, _GET = ("POST",), ("GET",)
_POST_OR_PUT = ("POST", "PUT")  # SGLang accepts both

# path: (methods, API)
PASSED: dict[str, tuple[tuple[str, ...], Api]] = {
    "/health": (_GET, HEALTH),
    "/health_generate": (_GET, HEALTH),
    "/ping": (("GET", "POST"), HEALTH),
    # Inference
    "/v1/rerank": (_POST_OR_PUT, _RERANK),
    "/v2/rerank": (_POST, _RERANK),
    "/rerank": (_POST, _RERANK),
    "/v1/reranking": (_POST, _RERANK),
    "/reranking": (_POST, _RERANK),
    "/v1/score": (_POST, _SCORE),
    "/score": (_POST, _SCORE),
    "/generative_scoring": (_POST, _SCORE),
    "/v1/classify": (_POST, _CLASSIFY),
    "/classify": (_POST_OR_PUT, _CLASSIFY),
    "/pooling": (_POST, PlainApi("pooling")),
    "/encode": (_POST_OR_PUT, _EMBED),
    "/embed": (_POST, _EMBED),
    "/v2/embed": (_POST, _EMBED),
    "/embedding": (_POST, _EMBED),
    "/embeddings": (_POST, _EMBED),
    "/api/embed": (_POST, _OLLAMA_EMBED),
    "/api/embeddings": (_POST, _OLLAMA_EMBED),
    "/v1/moderations": (_POST, PlainApi("openai.moderations")),
    "/v1/audio/transcriptions": (_POST, PlainApi("openai.audio.transcriptions", media=True)),
    "/v1/audio/translations": (_POST, PlainApi("openai.audio.translations", media=True)),
    "/v1/audio/speech": (_POST, PlainApi("openai.audio.speech")),
    "/v1/images/generations": (_POST, _IMAGES),
    "/v1/images/edits": (_POST, _IMAGE_FILES),
    "/v1/images/variations": (_POST, _IMAGE_FILES),
    # Questions
    "/v1/images/*": (_GET, PlainApi("openai.images", question=True)),  # generated images: /v1/images/{id}/content
    "/tokenize": (_POST, _TOKENIZE),
    "/detokenize": (_POST, _TOKENIZE),
    "/v1/tokenize": (_POST, _TOKENIZE),
    "/v1/detokenize": (_POST, _TOKENIZE),
    "/apply-template": (_POST, _TOKENIZE),
    "/v1/chat/completions/render": (_POST, _TOKENIZE),
    "/v1/completions/render": (_POST, _TOKENIZE),
    "/v1/chat/completions/derender": (_POST, _TOKENIZE),
    "/v1/completions/derender": (_POST, _TOKENIZE),
    "/parse_function_call": (_POST, _TOKENIZE),
    "/separate_reasoning": (_POST, _TOKENIZE),
    "/tokenizer_info": (_GET, _INFO),
    "/version": (_GET, _INFO),
    "/model_info": (_GET, _INFO),
    "/get_model_info": (_GET, _INFO),
    "/info": (_GET, _INFO),
    "/props": (_GET, _INFO),
    "/api/tags": (_GET, _OLLAMA_INFO),
    "/api/version": (_GET, _OLLAMA_INFO),
    "/api/show": (_POST, _OLLAMA_INFO),
}

_CHANGES: Final = "it changes the engine for all clients, or stops other clients' work"
_SECRETS: Final = "it shows the engine's start options, which may contain keys"
_FIGURES: Final = "it shows other clients' activity; hangup's own metrics are on the admin port"
_UNCAPPED: Final = "hangup does not know this API, so it cannot limit or count its tokens"

_WHY: dict[str, tuple[str, ...]] = {
    _CHANGES: (
        "/abort_requests",
        "/abort_request",
        "/add_external_corpus",
        "/api/copy",
        "/api/create",
        "/api/delete",
        "/api/pull",
        "/api/push",
        "/clear_hicache_storage_backend",
        "/close_session",
        "/collective_rpc",
        "/configure_logging",
        "/continue_generation",
        "/destroy_weights_update_group",
        "/dump_expert_distribution_record",
        "/fault_tolerance/apply",
        "/finish_weight_update",
        "/flush_cache",
        "/freeze_gc",
        "/hicache/storage-backend",
        "/hicache/storage-backend/clear",
        "/init_weight_transfer_engine",
        "/init_weights_send_group_for_remote_instance",
        "/init_weights_update_group",
        "/load_lora_adapter",
        "/load_lora_adapter_from_tensors",
        "/lora-adapters",
        "/models/load",
        "/models/unload",
        "/open_session",
        "/pause",
        "/pause_generation",
        "/release_memory_occupation",
        "/remove_external_corpus",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/resume_memory_occupation",
        "/scale_elastic_ep",
        "/send_weights_to_remote_instance",
        "/set_internal_state",
        "/set_trace_level",
        "/sleep",
        "/slow_down",
        "/start_draft_weight_update",
        "/start_expert_distribution_record",
        "/start_profile",
        "/start_weight_update",
        "/stop_expert_distribution_record",
        "/stop_profile",
        "/unload_lora_adapter",
        "/update_weight_version",
        "/update_weights",
        "/update_weights_from_disk",
        "/update_weights_from_distributed",
        "/update_weights_from_ipc",
        "/update_weights_from_tensor",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
        "/weights_checker",
    ),
    _SECRETS: ("/server_info", "/get_server_info", "/get_weights_by_name", "/list_external_corpora"),
    _FIGURES: (
        "/api/ps",
        "/fault_tolerance/status",
        "/get_load",
        "/get_world_size",
        "/is_paused",
        "/is_scaling_elastic_ep",
        "/is_sleeping",
        "/load",
        "/metrics",
        "/slots",
        "/v1/loads",
        "/weight_info",
    ),
    _UNCAPPED: ("/cohere/v2/chat", "/inference/v1/generate", "/infill", "/v1/chat/completions/batch", "/vertex_generate"),
}
REFUSED: Final = {path: why for why, paths in _WHY.items() for path in paths}


def why_not(path: str) -> str:
    """Return the error text for a path that is not passed on."""
    shown = path[:200]
    allow = f'add a [[route]] with path = "{shown}" to hangup\'s configuration.'
    why = REFUSED.get(path)
    if why is None:
        return f"Unknown path {shown}: hangup forwards only paths that it knows. If the engine has this one, {allow}"
    return f"hangup does not forward {shown} to the engine: {why}. If clients need it, {allow}"

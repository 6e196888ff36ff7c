"""APIs that generate no text: embeddings, lists of models, files, batches, stored responses and jobs."""

from __future__ import annotations

from typing import Final

from hangup.gateway.apis.anthropic import AnthropicErrors
from hangup.gateway.apis.base import Api


class EmbeddingsApi(Api):
    name = "openai.embeddings"
    paths = {"/v1/embeddings": ("POST",)}
    sized = True


class ModelsApi(Api):
    name = "openai.models"
    paths = {"/v1/models": ("GET",), "/v1/models/*": ("GET",)}
    question = True


class AnthropicModelsApi(AnthropicErrors):
    """`/v1/models` for a request in Anthropic's style."""

    name = "anthropic.models"


class FilesApi(Api):
    name = "openai.files"
    paths = {"/v1/files": ("GET", "POST"), "/v1/files/*": ("GET", "DELETE")}
    about_jobs = True


class BatchesApi(Api):
    name = "openai.batches"
    paths = {"/v1/batches": ("GET", "POST"), "/v1/batches/*": ("GET", "POST")}
    about_jobs = True


class StoredResponsesApi(Api):
    name = "openai.responses.stored"
    paths = {"/v1/responses/*": ("GET", "POST", "DELETE")}
    about_jobs = True
    engine_may_have = True


class MessageBatchesApi(AnthropicErrors):
    name = "anthropic.batches"
    paths = {"/v1/messages/batches": ("GET", "POST"), "/v1/messages/batches/*": ("GET", "POST", "DELETE")}
    about_jobs = True


class JobsApi(Api):
    name = "hangup.jobs"
    paths = {"/v1/jobs": ("GET",), "/v1/jobs/*": ("GET", "DELETE")}
    about_jobs = True


ANTHROPIC_MODELS: Final = AnthropicModelsApi()

"""Takes over the configuration of LiteLLM's proxy (`config.yaml`): models, addresses, keys, prices, retries.

No key is copied: the file gets the name of an environment variable. What hangup has no counterpart for is listed.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hangup.cli.keys import digest_of
from hangup.config.addresses import url_problem
from hangup.config.check import default_name
from hangup.errors import HangupError

Table = tuple[str, str, dict[str, Any]]  # name of the list, comment, values
# By the prefix of `model`: hangup's kind of engine, and where the provider is, unless `api_base` says so.
_ENGINES = {"hosted_vllm": "vllm", "vllm": "vllm", "ollama": "ollama", "ollama_chat": "ollama", "huggingface": "tgi"}
_PROVIDERS = {
    "openai": "https://api.openai.com/v1",
    "text-completion-openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "together_ai": "https://api.together.xyz/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "fireworks_ai": "https://api.fireworks.ai/inference/v1",
    "xai": "https://api.x.ai/v1",
    "nvidia_nim": "https://integrate.api.nvidia.com/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "sambanova": "https://api.sambanova.ai/v1",
    "openai_like": "",
    "xinference": "",
    "infinity": "",
    "ollama": "http://127.0.0.1:11434",
    "ollama_chat": "http://127.0.0.1:11434",
    "lm_studio": "",
    "llamafile": "",
    "hosted_vllm": "",
    "vllm": "",
    "huggingface": "",
    "litellm_proxy": "",
    "custom_openai": "",
}
_MODELS = {  # what `openai/*` means: `*` alone would get the calls of all other backends' models as well
    "openai": (
        "gpt-*",
        "chatgpt-*",
        "o1*",
        "o3*",
        "o4*",
        "text-embedding-*",
        "omni-moderation-*",
        "whisper-*",
        "tts-*",
        "dall-e-*",
    ),
    "anthropic": ("claude-*",),
}
_OTHERS_MODELS = {"gemini": ("gemini-*",), "cohere": ("command-*", "embed-*")}
_OWN_APIS = {"azure", "azure_ai", "bedrock", "cohere", "gemini", "palm", "replicate", "sagemaker", "vertex_ai", "watsonx"}
_FROM_ENVIRONMENT = "os.environ/"
_TAKEN = {"model", "api_base", "base_url", "api_key", "max_parallel_requests", "weight", "output_cost_per_token"}


def taken_over(file: Path, env: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], list[Table], list[str]]:
    """Return settings, limits, rows of lists, and notes about what was not taken over."""
    document = _with_includes(_read(file), file)
    reader = _Reader(env, document)
    for number, entry in enumerate(_list(document.get("model_list")), 1):
        reader.deployment(number, _dict(entry))
    limits = reader.limits_of(document)
    tables: list[Table] = [("backend", note, row) for note, row in reader.finished()]
    tables += [("alias", "", {"name": name, "model": model}) for name, model in reader.aliases.items() if name != model]
    tables += reader.tenants(document)
    if not reader.backends:
        reader.lost.append("model_list: there is no model that hangup can serve")
    lost = "".join(f"\n- {text}" for text in dict.fromkeys(reader.lost))
    return (
        {},
        limits,
        tables,
        [f"Taken over from {file.name}. Not taken over:{lost}" if lost else f"Taken over from {file.name}."],
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise HangupError("--from-litellm needs an extra package\n  hint: pip install 'hangup[litellm]'") from None
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise HangupError(f"{file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise HangupError(f"{file}{place}: not valid YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    if not isinstance(document, dict):
        raise HangupError(f"{file}: expected the configuration of LiteLLM's proxy, with a model_list")
    return document


def _with_includes(document: dict[str, Any], file: Path) -> dict[str, Any]:
    """Add what LiteLLM adds from the files under `include`: lists are joined, other settings replaced."""
    for name in _list(document.pop("include", None)):
        for key, value in _read(file.parent / str(name)).items():
            document[key] = document[key] + value if isinstance(value, list) and isinstance(document.get(key), list) else value
    return document


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    """Return a number, also one that stands in quotes."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _provider_of(full: str, *, known_address: bool) -> tuple[str, str]:
    """Split `provider/model`, as LiteLLM does. Without a provider, the name tells whose it is."""
    provider, slash, model = full.partition("/")
    if slash and (provider in (*_PROVIDERS, *_OWN_APIS) or not known_address):
        return provider, model
    for owner, patterns in (*_MODELS.items(), *_OTHERS_MODELS.items()):
        if not slash and any(fnmatchcase(full, pattern) for pattern in patterns):
            return owner, full
    return ("openai" if known_address or "*" in full else ""), full


class _Reader:
    """Collects backends, aliases, and what is lost."""

    def __init__(self, env: Mapping[str, str], document: dict[str, Any]) -> None:
        self._own_variables = {str(name): str(value) for name, value in _dict(document.get("environment_variables")).items()}
        self._env = {**env, **self._own_variables}
        rows = [_dict(row) for row in _list(document.get("credential_list"))]
        self._credentials = {str(row.get("credential_name")): _dict(row.get("credential_values")) for row in rows}
        self.backends: dict[str, dict[str, Any]] = {}  # by URL
        self.aliases: dict[str, str] = {}
        self.lost: list[str] = []
        self._asked = set[str]()  # URLs whose models are not listed
        self._prices: dict[str, set[float]] = {}  # by URL

    def deployment(self, number: int, entry: dict[str, Any]) -> None:
        name, params = str(entry.get("model_name") or ""), _dict(entry.get("litellm_params"))
        if (credential := str(params.get("litellm_credential_name"))) in self._credentials:
            given = {key: value for key, value in params.items() if key != "litellm_credential_name"}
            params = {**self._credentials[credential], **given}
        full = str(params.get("model") or "")
        base = self._value(params.get("api_base") or params.get("base_url"))
        provider, model = _provider_of(full, known_address=bool(base))
        if not name or not model:
            self.lost.append(
                f"entry {number} of model_list{f' ({name})' if name else ''}: no model_name, or no litellm_params.model"
            )
            return
        if provider not in _PROVIDERS:
            whose = f"{provider} has an API of its own, or" if provider else f"{model} has no provider before a /, and"
            self.lost.append(f"{name}: {whose} hangup does not know its address")
            return
        url = re.sub(r"/(v1/)?(chat/completions|completions|embeddings)$", "", (base or _PROVIDERS[provider]).rstrip("/"))
        if not url or url_problem(url):
            self.lost.append(f"{name}: it needs an api_base that is an http:// or https:// address")
            return
        if urlsplit(url).path.rstrip("/") not in ("", "/v1") and not url.endswith("/v1") and provider != "anthropic":
            self.lost.append(
                f"{name}: LiteLLM calls {url}/chat/completions, hangup {url}/v1/chat/completions: see if that is right"
            )
        if provider == "anthropic":
            self.lost.append(f"{name}: the translation of OpenAI's API to Anthropic's; clients call /v1/messages")
        row = self.backends.setdefault(url, {"url": url})
        self._key(name, row, str(params.get("api_key") or ""))
        if provider in _ENGINES:
            row["engine"] = _ENGINES[provider]
        self._models(name, row, model, () if base else _MODELS.get(provider, ()))
        self._amounts(name, row, params)
        self._note_lost(name, entry, params)

    def _models(self, name: str, row: dict[str, Any], model: str, usual: tuple[str, ...]) -> None:
        """Take over a model or a pattern of models. `usual` are the names that the provider uses."""
        models = row.setdefault("models", [])
        if "*" not in name:
            self._alias(name, model)
        elif name not in (model, "*"):
            self.lost.append(f"{name}: a new name by a pattern; clients say the name that {row['url']} has for a model")
        if model == "*" and (name == "*" or not usual):  # hangup asks for the list, and sends there what nobody else has
            self._asked.add(row["url"])
            self.lost.append(f"{name}: the pattern; hangup asks {row['url']} for its models instead")
        wanted = usual if model == "*" else (model,)
        models += [each for each in wanted if each not in models]

    def _value(self, given: Any) -> str:
        """Return a value, from the environment where it says so."""
        text = str(given or "")
        if not text.startswith(_FROM_ENVIRONMENT):
            return text
        variable = text.removeprefix(_FROM_ENVIRONMENT)
        if variable not in self._env:
            self.lost.append(f"{variable} is not set here, so the addresses that it has are missing")
        return self._env.get(variable, "")

    def _key(self, name: str, row: dict[str, Any], key: str) -> None:
        if not key or key.lower() in ("none", "dummy", "empty", "fake-key", "anything"):
            return
        if key.startswith(_FROM_ENVIRONMENT):
            variable = key.removeprefix(_FROM_ENVIRONMENT)
            if variable in self._own_variables:
                self.lost.append(f"{variable} stands in LiteLLM's environment_variables; set it in hangup's environment")
        else:
            variable = "API_KEY_" + re.sub(r"\W+", "_", default_name(row["url"])).strip("_").upper()
            self.lost.append(f"the key of {row['url']} stands in LiteLLM's file; set the environment variable {variable} to it")
        if row.setdefault("api_key_env", variable) != variable:
            self.lost.append(f"{name}: a second key ({variable}) for {row['url']}; hangup sends one key to a backend")

    def _alias(self, name: str, model: str) -> None:
        if self.aliases.setdefault(name, model) != model:
            self.lost.append(f"{name} is {self.aliases[name]} at one backend and {model} at another; hangup uses the first")

    def _amounts(self, name: str, row: dict[str, Any], params: dict[str, Any]) -> None:
        for theirs, ours, kind in (("max_parallel_requests", "slots", int), ("weight", "weight", float)):
            if (amount := _number(params.get(theirs))) is not None and amount > 0:
                row[ours] = kind(amount)
        if (price := _number(params.get("output_cost_per_token"))) is not None:
            prices = self._prices.setdefault(row["url"], set())
            prices.add(price)
            row["price_per_million_tokens"] = round(price * 1_000_000, 6)
            if len(prices) > 1:
                self.lost.append(f"{name}: a second price at {row['url']}; hangup's ledger has one for each backend")

    def _note_lost(self, name: str, entry: dict[str, Any], params: dict[str, Any]) -> None:
        for key in ("rpm", "tpm"):
            if key in params:
                self.lost.append(
                    f"{name}: {key} = {params[key]}; hangup limits the calls at a time (slots), heeds the 429 of providers, and"
                    " has tokens_per_minute for each [[tenant]]"
                )
        rest = sorted(set(params) - _TAKEN - {"rpm", "tpm"}) + sorted(set(entry) - {"model_name", "litellm_params"})
        if rest:
            self.lost.append(f"{name}: {', '.join(rest)}")

    def limits_of(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the limits that LiteLLM's settings stand for, and note which settings stand for none."""
        limits: dict[str, Any] = {}
        for section in ("litellm_settings", "router_settings", "general_settings"):
            for key, value in _dict(document.get(section)).items():
                number = _number(value)
                if key in ("request_timeout", "timeout") and number is not None and number > 0:
                    limits["total_s"] = number
                elif key == "num_retries" and number is not None and number >= 0:
                    limits["failover_max"] = int(number)
                elif key == "model_group_alias":
                    for name, group in _dict(value).items():
                        target = str(group.get("model", "") if isinstance(group, dict) else group)
                        self._alias(str(name), self.aliases.get(target, target))
                elif key != "master_key":
                    self.lost.append(f"{section}: {key}")
        known = {"model_list", "litellm_settings", "router_settings", "general_settings", "credential_list"}
        for section in document:
            if section not in known:
                rest = "except for addresses" if section == "environment_variables" else "as a whole"
                self.lost.append(f"{section}, {rest}")
        return limits

    def tenants(self, document: dict[str, Any]) -> list[Table]:
        """Return the tenant of LiteLLM's master key, which is kept as a digest."""
        given = str(_dict(document.get("general_settings")).get("master_key") or "")
        variable = given.removeprefix(_FROM_ENVIRONMENT) if given.startswith(_FROM_ENVIRONMENT) else ""
        key = self._env.get(variable, "") if variable else given
        if variable and not key:
            self.lost.append(
                f"master_key: {variable} is not set here; `hangup key digest` makes the key_sha256 of a [[tenant]]; until"
                " then, clients need no key"
            )
        note = "LiteLLM's master_key, as a digest. Clients go on using the key."
        return [("tenant", note, {"name": "master", "key_sha256": [digest_of(key)]})] if key else []

    def finished(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the backends, each with a comment."""
        rows = []
        for row in self.backends.values():
            count = len(row["models"])
            if row["url"] in self._asked:
                del row["models"]
            rows.append((f"{count} model{'' if count == 1 else 's'} of LiteLLM's model_list" if count else "", row))
        return rows

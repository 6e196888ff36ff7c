"""What a trace shows of requests and answers, by OpenTelemetry's conventions for generative AI. Never a prompt or an answer."""

from __future__ import annotations

from typing import Any, Final

from hangup.core.call import Call
from hangup.gateway.apis.base import Json

_TEXT_MAX: Final = 200
_LIST_MAX: Final = 32
_NUMBER_MAX: Final = 1 << 63  # a client may send anything: no collector takes larger integers, and no float takes 400 digits
# Attribute, and the fields that have it, in the APIs that hangup speaks.
_NUMBERS: Final = {
    "gen_ai.request.temperature": ("temperature",),
    "gen_ai.request.top_p": ("top_p",),
    "gen_ai.request.top_k": ("top_k",),
    "gen_ai.request.frequency_penalty": ("frequency_penalty",),
    "gen_ai.request.presence_penalty": ("presence_penalty",),
}
_WHOLE_NUMBERS: Final = {
    "gen_ai.request.max_tokens": ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict", "max_new_tokens"),
    "gen_ai.request.seed": ("seed",),
}
_PLACES = ("", "parameters", "options", "sampling_params")  # TGI, Ollama and SGLang nest them


def request_attributes(value: Json, choices: int) -> dict[str, Any]:
    """Return the parameters of a generation."""
    places = [value, *(value[place] for place in _PLACES if isinstance(value.get(place), dict))]
    found: dict[str, Any] = {}
    for names, kinds in ((_NUMBERS, (int, float)), (_WHOLE_NUMBERS, (int,))):
        for attribute, fields in names.items():
            given = next((place[name] for place in places for name in fields if type(place.get(name)) in kinds), None)
            if given is not None and -_NUMBER_MAX <= given < _NUMBER_MAX:
                found[attribute] = float(given) if names is _NUMBERS else given
    if choices != 1:
        found["gen_ai.request.choice.count"] = choices
    if _wants_json(value):
        found["gen_ai.output.type"] = "json"
    return found


def _wants_json(value: Json) -> bool:
    form = value.get("response_format")
    return isinstance(form, dict) and str(form.get("type")).startswith("json")


def note_answer(call: Call, value: Json) -> None:
    """Note the answer's id, model and reasons of its end, from a whole answer or from one event of a stream."""
    attributes = call.trace_attributes
    if attributes is None:
        return
    parts = [value, *(part for name in ("response", "message") if isinstance(part := value.get(name), dict))]
    for attribute, name in (("gen_ai.response.id", "id"), ("gen_ai.response.model", "model")):
        given = next((part[name] for part in parts if isinstance(part.get(name), str) and part[name]), "")
        if given and attribute not in attributes:
            attributes[attribute] = given[:_TEXT_MAX]
    if ends := _ends(parts):
        attributes["gen_ai.response.finish_reasons"] = ends


def _status(answer: Json) -> object:
    """Return how an answer of the Responses API ended: it has no reason, but a status, and details of an incomplete one."""
    if answer.get("object") != "response" or answer.get("status") not in ("completed", "incomplete"):
        return None
    details = answer.get("incomplete_details")
    return details.get("reason") if isinstance(details, dict) else answer["status"]


def _ends(parts: list[Json]) -> list[str]:
    """Return why the choices of an answer ended."""
    choices = parts[0].get("choices")
    if isinstance(choices, list):
        rows = [choice.get("finish_reason") for choice in choices[:_LIST_MAX] if isinstance(choice, dict)]
    else:
        nested = [*parts, *(part for name in ("delta", "details") if isinstance(part := parts[0].get(name), dict))]
        names = ("stop_reason", "finish_reason", "done_reason", "stop_type")
        rows = [next((part[name] for part in nested for name in names if part.get(name)), None) or _status(parts[-1])]
    return [row[:_TEXT_MAX] for row in rows if isinstance(row, str)]

"""The configuration file as a JSON schema, by which editors complete and check it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from hangup.config.limits import LimitSettings
from hangup.config.schema import APIS, LISTS, Settings, per_call_limits, scalar_fields
from hangup.config.toml_text import SCHEMA_URL


def json_schema(engines: Iterable[str]) -> dict[str, Any]:
    """Return the schema; `engines` are the kinds of engine that exist."""
    per_call = [field for field in scalar_fields(LimitSettings) if field.name in per_call_limits()]
    tables: dict[str, dict[str, Any]] = {}
    for name, cls in LISTS.items():
        row = _table(scalar_fields(cls), (cls.__doc__ or "").strip())
        if "limits" in row["properties"]:
            row["properties"]["limits"] |= _table(per_call, row["properties"]["limits"]["description"])
        tables[name] = {"type": "array", "items": row}
    backend = tables["backend"]["items"]
    backend["properties"]["engine"]["enum"] = list(engines)
    backend["properties"]["apis"]["items"]["enum"] = list(APIS)
    backend["required"] = ["url"]
    tables["tenant"]["items"]["required"] = ["name", "key_sha256"]
    tables["tenant"]["items"]["properties"]["key_sha256"]["items"]["pattern"] = "^[0-9a-f]{64}$"
    tables["route"]["items"]["required"] = ["path"]
    tables["alias"]["items"]["required"] = ["name", "model"]
    whole = _table(scalar_fields(Settings), "Configuration of hangup: hangup.toml")
    whole["properties"] |= {"limits": _table(scalar_fields(LimitSettings), "Limits."), **tables}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$id": SCHEMA_URL, "title": "hangup.toml", **whole}


def _table(fields: list[Field[Any]], description: str) -> dict[str, Any]:
    properties = {field.name: _property(field) for field in fields}
    return {"type": "object", "description": description, "additionalProperties": False, "properties": properties}


def _property(field: Field[Any]) -> dict[str, Any]:
    kind, meta = str(field.type), field.metadata
    default = field.default if not callable(field.default_factory) else field.default_factory()
    shape: dict[str, Any]
    if kind in ("int", "float"):
        shape = {"type": "integer" if kind == "int" else "number"}
        bounds = {"minimum": meta["least"], "maximum": meta["most"]}
        shape |= {name: bound for name, bound in bounds.items() if bound is not None}
        if meta["words"]:
            shape = {"anyOf": [shape, {"enum": list(meta["words"])}]}
    elif kind.startswith(("list", "tuple")):
        shape = {"type": "array", "items": {"type": "string"}}
    else:
        shape = {"type": {"bool": "boolean", "str": "string"}.get(kind, "object")}
    if meta["choices"]:
        shape["enum"] = list(meta["choices"])
    return {**shape, "default": list(default) if isinstance(default, tuple) else default, "description": meta["doc"]}

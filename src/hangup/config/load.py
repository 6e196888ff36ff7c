"""Builds the configuration: flag > environment > file > default, each value with its origin.

It collects all problems and reports them at once, each with its place, what was expected and the nearest valid name. Nothing
starts half-configured.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangup.config import check, keys, locate, secrets
from hangup.config.addresses import url_problem
from hangup.config.limits import LimitSettings
from hangup.config.locate import Places
from hangup.config.paths import with_home
from hangup.config.schema import (
    APIS,
    LISTS,
    AliasSettings,
    BackendSettings,
    RouteSettings,
    Settings,
    TenantSettings,
    per_call_limits,
    scalar_fields,
)
from hangup.errors import ConfigError

ENV_PREFIX = "HANGUP_"
# Environment variables that are not settings: the file to read, the short form of the backends, and those for commands
# that talk to a running gateway.
ENV_OTHERS = {
    "HANGUP_CONFIG",
    "HANGUP_UPSTREAM",
    "HANGUP_ENGINE",
    "HANGUP_ADMIN_URL",
    "HANGUP_ADMIN_TOKEN",
    "HANGUP_URL",
    "HANGUP_API_KEY",
    "HANGUP_ENGINES_DIR",
}
# Kubernetes sets these in every pod of a namespace that has a Service named `hangup`, or `hangup-` and something.
_KUBERNETES = re.compile(
    r"HANGUP_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_KUBERNETES_PORT = re.compile(r"(?:tcp|udp|sctp)://\S+")
_NAMES_SHOWN_MAX = 40
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings in effect, and the origin of each."""

    settings: Settings
    origins: dict[str, str]
    path: Path | None = None
    warnings: tuple[str, ...] = ()  # oddities that do not prevent a start
    places: Places = dataclasses.field(default=Places(None, {}), repr=False, compare=False)

    def place(self, key: locate.Path) -> str:
        """Return where a setting comes from, for a message about it: a flag, a variable, or a line and column of the file."""
        return self.origins.get(str(key[0])) or self.places(key)

    def origin(self, name: str) -> str:
        return self.origins.get(name, "default")


@dataclass(frozen=True, slots=True)
class _Given:
    """A configured value, and its place for error messages."""

    value: Any
    place: str


class _Problems(list[str]):
    """The problems found so far."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown_variables: dict[str, str] = {}  # these do not prevent a start: other programs use our prefix as well

    def add(self, place: str, message: str, hint: str = "") -> None:
        self.append(f"{place}: {message}" + (f"\n  hint: {hint}" if hint else ""))

    def unknown(self, place: str, what: str, name: str, valid: list[str], prefix: str = "") -> None:
        near = difflib.get_close_matches(name, valid, 1, 0.6)
        if near:
            hint = f"did you mean {prefix}{near[0]}?"
        elif len(valid) > _NAMES_SHOWN_MAX:
            hint = f"`hangup config example` prints all {len(valid)} valid names"
        else:
            hint = "valid names: " + ", ".join(prefix + v for v in sorted(valid))
        self.add(place, f"unknown {what} {prefix}{name}", hint)


def digest_of_names() -> str:
    """Return what tells apart installations whose settings differ, and which must not exchange a `Configuration`."""
    tables = (Configuration, Settings, LimitSettings, *LISTS.values())
    names = [[field.name for field in dataclasses.fields(table)] for table in tables]
    return hashlib.sha256(repr(names).encode()).hexdigest()[:12]


def load(
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    upstreams: list[str] | None = None,
    engine: str | None = None,
) -> Configuration:
    """Read and check everything; raise `ConfigError` with all problems found."""
    problems = _Problems()
    has_env = env is not None
    env = env or {}
    flags = flags or {}
    if path is None and env.get("HANGUP_CONFIG"):
        path = Path(env["HANGUP_CONFIG"])
    document, positions = _read_file(path, problems) if path else ({}, {})
    place = Places(path, positions)

    scalars = {f.name: f for f in scalar_fields(Settings)}
    limits = {f.name: f for f in scalar_fields(LimitSettings)}
    given: dict[str, _Given] = {}
    tables = document.pop("limits", {})
    _take_file(document, scalars, (), given, place, problems, {"limits", *LISTS})
    if isinstance(tables, dict):
        _take_file(tables, limits, ("limits",), given, place, problems, set())
    else:
        problems.add(place(("limits",)), "limits must be a table: [limits]")
    _take_env(env, scalars, limits, given, problems)
    for name, value in flags.items():
        given[name] = _Given(value, "--" + name.replace("_", "-"))

    origins: dict[str, str] = {}
    values = {
        **_checked(scalars, given, problems, origins),
        "limits": LimitSettings(**_checked(limits, given, problems, origins)),
    }
    backends = _backends(document.get("backend", []), place, problems)
    chosen = _upstreams(env, upstreams, engine, problems, origins)
    tenants = _tenants(document.get("tenant", []), place, problems)
    routes = _routes(document.get("route", []), place, problems)
    aliases = _aliases(document.get("alias", []), place, problems)
    settings = _with_homes(Settings(**values, backend=chosen or backends, tenant=tenants, route=routes, alias=aliases))
    config = Configuration(settings, origins, path, places=place)
    for at, problem in check.problems(settings):
        problems.add(config.place(at), problem)
    if has_env:  # without an environment, a file can be checked on any machine
        settings, unread = secrets.with_secrets(settings, env)
        for at, problem in unread:
            problems.add(config.place(at), problem)
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(config, settings=settings, warnings=_warnings(settings, problems, flags))


def _with_homes(settings: Settings) -> Settings:
    """Replace ~ by the home directory in the names of files. Stores and secrets do so where they are opened."""
    backends = tuple(
        dataclasses.replace(backend, ca_file=with_home(backend.ca_file), spawn_log=with_home(backend.spawn_log))
        for backend in settings.backend
    )
    own: dict[str, Any] = {name: with_home(getattr(settings, name)) for name in ("log", "tls_cert", "tls_key")}
    return dataclasses.replace(settings, backend=backends, **own)


def _warnings(settings: Settings, problems: _Problems, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what does not prevent a start."""
    named = secrets.variables_with_secrets(settings)
    found = [text for variable, text in problems.unknown_variables.items() if variable not in named]
    if about_keys := keys.warning(settings):
        found.append(about_keys)
    found += [
        f"--{name.replace('_', '-')} shows a password in the list of processes\n"
        f"  hint: use {ENV_PREFIX}{name.upper()}, the file, or {name}_password_file"
        for name in secrets.SERVERS
        if check.HAS_PASSWORD.search(str(flags.get(name, "")))
    ]
    return tuple(found)


def _read_file(path: Path, problems: _Problems) -> tuple[dict[str, Any], dict[locate.Path, locate.Position]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        problems.add(f"{path}:{line}:{column}", "not valid TOML: the file is not in UTF-8")
        return {}, {}
    except OSError as error:
        problems.add(str(path), f"cannot be read: {error.strerror or error}")
        return {}, {}
    try:
        return tomllib.loads(text), locate.key_positions(text)
    except RecursionError:
        problems.add(str(path), "not valid TOML: nested too deeply")
        return {}, {}
    except ValueError as error:  # from tomllib, or from a number with thousands of digits
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        if "(at end of document)" in str(error):
            lines = text.split("\n")
            where = f"{path}:{len(lines)}:{len(lines[-1]) + 1}"
        else:
            where = f"{path}:{place[1]}:{place[2]}" if place else str(path)
        problems.add(where, f"not valid TOML: {str(error).split(' (at ')[0]}")
        return {}, {}


def _take_file(
    table: dict[str, Any],
    fields: dict[str, dataclasses.Field[Any]],
    at: locate.Path,
    given: dict[str, _Given],
    place: Places,
    problems: _Problems,
    others: set[str],
) -> None:
    for key, value in table.items():
        if key in fields:
            given[key] = _Given(value, place((*at, key)))
        elif key not in others:
            section = "limits" if key in {f.name for f in scalar_fields(LimitSettings)} else ""
            if section and not at:
                problems.add(place((*at, key)), f"{key} belongs in [limits]")
            else:
                problems.unknown(place((*at, key)), "setting", key, [*fields, *others])


def _take_env(
    env: Mapping[str, str],
    scalars: dict[str, dataclasses.Field[Any]],
    limits: dict[str, dataclasses.Field[Any]],
    given: dict[str, _Given],
    problems: _Problems,
) -> None:
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OTHERS or _is_kubernetes(variable, env[variable]):
            continue
        name = variable[len(ENV_PREFIX) :].lower()
        if name in scalars or name in limits:
            given[name] = _Given(env[variable], variable)
        else:
            near = difflib.get_close_matches(name, [*scalars, *limits], 1, 0.6)
            hint = f"did you mean {ENV_PREFIX}{near[0].upper()}?" if near else "`hangup config show` lists the settings"
            problems.unknown_variables[variable] = f"{variable}: unknown environment variable, ignored; {hint}"


def _is_kubernetes(variable: str, value: str) -> bool:
    """Return whether Kubernetes made the variable for a Service, so that it is not meant as a setting."""
    if variable.endswith("_PORT") and _KUBERNETES_PORT.fullmatch(value):
        return True
    return _KUBERNETES.fullmatch(variable) is not None


def _checked(
    fields: dict[str, dataclasses.Field[Any]], given: dict[str, _Given], problems: _Problems, origins: dict[str, str]
) -> dict[str, Any]:
    values = {}
    for name, field in fields.items():
        if name in given:
            try:
                values[name] = convert(field, given[name].value)
                origins[name] = given[name].place
            except ValueError as error:
                problems.add(given[name].place, f"{name}: {error}")
    return values


def convert(field: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a value from TOML, an environment variable or a flag to the field's type; ValueError says what was expected."""
    kind, meta = str(field.type), field.metadata
    expected = describe(field)
    if kind == "bool":
        if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "yes", "no"):
            return value.lower() in ("true", "1", "yes")
        if not isinstance(value, bool):
            raise ValueError(f"expected {expected}, got {value!r}")
        return value
    if kind in ("int", "float"):
        is_word = isinstance(value, str) and value in meta["words"]
        return meta["words"][value] if is_word else _number(kind, value, meta, expected)
    if kind.startswith("list"):
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"expected {expected}, got {value!r}")
        return value
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise ValueError(f"expected {expected}, got {value!r}")
        return tuple(value)
    if kind.startswith("dict"):
        if not isinstance(value, dict):
            raise ValueError(f"expected {expected}, got {value!r}")
        return value
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"expected {expected}, got {value!r}")
    if meta["choices"] and value not in meta["choices"]:
        near = difflib.get_close_matches(value, meta["choices"], 1)
        raise ValueError(f"expected {expected}, got {value!r}" + (f"\n  hint: did you mean {near[0]}?" if near else ""))
    return value


def _number(kind: str, value: Any, meta: Mapping[str, Any], expected: str) -> float | int:
    number: float | int | None = None
    if isinstance(value, str):
        try:
            number = int(value) if kind == "int" else float(value)
        except ValueError:
            number = None
    elif (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and kind == "float"):
        number = value
    if isinstance(number, int):
        number = None if abs(number) >= 2**63 else number if kind == "int" else float(number)
    fits = (
        number is not None
        and math.isfinite(number)
        and (meta["least"] is None or number >= meta["least"])
        and (meta["most"] is None or number <= meta["most"])
    )
    if not fits:
        raise ValueError(f"expected {expected}, got {value!r}")
    assert number is not None
    return number


def describe(field: dataclasses.Field[Any]) -> str:
    """Describe what a field accepts: "a number of seconds, 0.1 or more"."""
    kind, meta = str(field.type), field.metadata
    if kind == "bool":
        return "true or false"
    if kind.startswith(("list", "tuple")):
        return "a list of strings"
    if kind.startswith("dict"):
        return "a table"
    if kind == "str":
        return "one of " + ", ".join(meta["choices"]) if meta["choices"] else "a string"
    words = "a whole number" if kind == "int" else "a number"
    for ending, unit in (("_s", "seconds"), ("_bytes_max", "bytes")):
        if field.name.endswith(ending):
            words += f" of {unit}"
    least, most = meta["least"], meta["most"]
    words = " or ".join([*meta["words"], words])
    if least is not None and most is not None:
        return f"{words} from {least:g} to {most:g}"
    return f"{words}, {least:g} or more" if least is not None else words


def _rows(cls: type, name: str, tables: Any, place: Places, problems: _Problems) -> list[tuple[dict[str, Any], locate.Path]]:
    """Return the checked tables of an array such as [[backend]]."""
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        problems.add(place((name,)), f"{name} must be an array of tables: [[{name}]]")
        return []
    fields = {f.name: f for f in scalar_fields(cls)}
    rows = []
    for index, table in enumerate(tables):
        at: locate.Path = (name, index)
        row = {}
        for key, value in table.items():
            if key not in fields:
                problems.unknown(place((*at, key)), f"{name} setting", key, list(fields))
                continue
            try:
                row[key] = convert(fields[key], value)
            except ValueError as error:
                problems.add(place((*at, key)), f"{key}: {error}")
        if isinstance(row.get("limits"), dict):
            row["limits"] = _own_limits(row["limits"], at, place, problems)
        rows.append((row, at))
    return rows


def _own_limits(table: dict[str, Any], at: locate.Path, place: Places, problems: _Problems) -> dict[str, Any]:
    fields = {f.name: f for f in scalar_fields(LimitSettings)}
    allowed = per_call_limits()
    values = {}
    for key, value in table.items():
        where = place((*at, "limits", key))
        if key in fields and key not in allowed:
            problems.add(where, f"{key} is a limit of the whole gateway: set it in [limits]")
        elif key not in allowed:
            problems.unknown(where, "per-call limit", key, sorted(allowed))
        else:
            try:
                values[key] = convert(fields[key], value)
            except ValueError as error:
                problems.add(where, f"{key}: {error}")
    return values


def _backends(tables: Any, place: Places, problems: _Problems) -> tuple[BackendSettings, ...]:
    backends = []
    for row, at in _rows(BackendSettings, "backend", tables, place, problems):
        if problem := url_problem(row.get("url", "")):
            problems.add(place((*at, "url")), f"url: {problem}")
        for api in row.get("apis", ()):
            if api not in APIS:
                problems.unknown(place((*at, "apis")), "API", api, list(APIS))
        own = [name for name in ("api_key_env", "api_key_file", "api_key_command") if row.get(name)]
        if own and row.get("client_key") == "pass":
            problems.add(place((*at, "client_key")), f'set {own[0]} or client_key = "pass", not both')
        backends.append(BackendSettings(**row))
    return tuple(backends)


def _aliases(tables: Any, place: Places, problems: _Problems) -> tuple[AliasSettings, ...]:
    aliases: list[AliasSettings] = []
    for row, at in _rows(AliasSettings, "alias", tables, place, problems):
        alias = AliasSettings(**row)
        for key in ("name", "model"):
            if not getattr(alias, key):
                problems.add(place((*at, key)), f"{key}: expected the name of a model, got nothing")
        if alias.name in [other.name for other in aliases]:
            problems.add(place((*at, "name")), f"there are two aliases named {alias.name}")
        aliases.append(alias)
    for index, alias in enumerate(aliases):
        if alias.model in [other.name for other in aliases]:
            where = place(("alias", index, "model"))
            problems.add(where, f"alias {alias.name} points to {alias.model}, which is an alias itself; name the model")
    return tuple(aliases)


def _upstreams(
    env: Mapping[str, str], upstreams: list[str] | None, engine: str | None, problems: _Problems, origins: dict[str, str]
) -> tuple[BackendSettings, ...]:
    """Return the backends given in short form: --upstream, or HANGUP_UPSTREAM with several separated by commas."""
    where, urls = "--upstream", upstreams or []
    if not urls and env.get("HANGUP_UPSTREAM"):
        where, urls = "HANGUP_UPSTREAM", [u.strip() for u in env["HANGUP_UPSTREAM"].split(",") if u.strip()]
    for url in urls:
        if problem := url_problem(url):
            problems.add(where, problem)
    if urls:
        origins["backend"] = where
    return tuple(BackendSettings(url=url, engine=engine or env.get("HANGUP_ENGINE") or "auto") for url in urls)


def _tenants(tables: Any, place: Places, problems: _Problems) -> tuple[TenantSettings, ...]:
    tenants: list[TenantSettings] = []
    owners: dict[str, str] = {}
    for row, at in _rows(TenantSettings, "tenant", tables, place, problems):
        name = row.get("name", "")
        if not _NAME.fullmatch(name):
            problems.add(place((*at, "name")), f"name: expected letters, digits, . _ : / or -, got {name!r}")
        if name in [t.name for t in tenants]:
            problems.add(place((*at, "name")), f"there are two tenants named {name}")
        for digest in row.get("key_sha256", []):
            if not _HEX_DIGEST.fullmatch(digest):
                problems.add(place((*at, "key_sha256")), "key_sha256: expected 64 hex digits", "`hangup key new` makes a pair")
            elif owners.setdefault(digest, name) != name:
                problems.add(place((*at, "key_sha256")), f"the same key belongs to {owners[digest]} and {name}")
        if not row.get("key_sha256"):
            # If no tenant had a key, every client would be let in.
            problems.add(place(at), f"tenant {name} has no key, so no client can use it", "`hangup key new` makes one")
        tenants.append(TenantSettings(**row))
    return tuple(tenants)


def _routes(tables: Any, place: Places, problems: _Problems) -> tuple[RouteSettings, ...]:
    routes: list[RouteSettings] = []
    for row, at in _rows(RouteSettings, "route", tables, place, problems):
        path = row.get("path", "")
        if not re.fullmatch(r"/[A-Za-z0-9._~/-]*\*?", path) or "/../" in f"{path}/":
            problems.add(place((*at, "path")), f"path: expected an absolute path, with at most one * at its end, got {path!r}")
        if path in [r.path for r in routes]:
            problems.add(place((*at, "path")), f"there are two routes for {path}")
        routes.append(RouteSettings(**row))
    return tuple(routes)

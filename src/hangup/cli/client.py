"""The command line's client for a running gateway's admin port."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from hangup.cli.parser import did_you_mean
from hangup.cli.table import printable
from hangup.errors import HangupError
from hangup.no_redirects import open_url
from hangup.terminal import plural

DEFAULT_URL = "http://127.0.0.1:8081"
_IDS_SHOWN = 5
TOKEN_VARIABLE = "HANGUP_ADMIN_TOKEN"  # noqa: S105 - its name, not the token
TIMEOUT_S = 10.0  # for an answer from the admin port


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--admin", metavar="URL", help=f"URL of the gateway's admin port (default: $HANGUP_ADMIN_URL or {DEFAULT_URL})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = (parser.epilog or "") + f"\nThe admin token is read from ${TOKEN_VARIABLE}."


class NotFound(HangupError):
    """The gateway has no such call, job or backend."""


class Admin:
    """A client for the admin port of one gateway."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        given = (arguments.admin or os.environ.get("HANGUP_ADMIN_URL") or DEFAULT_URL).rstrip("/")
        self.url = given if "://" in given else f"http://{given}"
        if not self.url.startswith(("http://", "https://")):
            raise HangupError(f"--admin: expected http://host:port, got {given!r}")
        self._as_json = getattr(arguments, "json", False)  # JSON escapes terminal control sequences itself
        self._headers = {"x-hangup": "1"}
        if token := os.environ.get(TOKEN_VARIABLE):
            self._headers["authorization"] = f"Bearer {token}"

    def get(self, path: str, **query: Any) -> Any:
        return self.request("GET", path, **query)

    def request(self, method: str, path: str, timeout_s: float = TIMEOUT_S, **query: Any) -> Any:
        """Return the answer's JSON; raise `HangupError` with the reason if there is none."""
        parameters = {name: value for name, value in query.items() if value not in (None, "", False)}
        url = self.url + path + (f"?{urlencode(parameters)}" if parameters else "")
        http_request = urllib.request.Request(url, method=method, headers=self._headers)  # noqa: S310 - http(s), see above
        try:
            with open_url(http_request, timeout=timeout_s) as answer:
                value = json.loads(answer.read())
                return value if self._as_json else printable(value)
        except urllib.error.HTTPError as error:
            raise _fault(error) from None
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            raise HangupError(
                f"cannot reach the gateway at {self.url}: {getattr(cause, 'strerror', None) or cause}\n"
                "  hint: start one with `hangup serve`, or give its admin URL with --admin or HANGUP_ADMIN_URL"
            ) from None

    def find_call(self, given: str, *, live: bool = False) -> str:
        """Return the id of the only call whose id begins with `given`; `given` itself if there is none."""
        found = self._ids(_not_empty(given), live)
        if given in found or not found or (live and given in self._ids(given, False)):  # has just ended
            return given
        if len(found) > 1:
            raise HangupError(_several(given, found))
        return found[0]

    def _ids(self, given: str, live: bool) -> list[str]:
        try:
            return list(self.get("/api/ids", prefix=given, live=live)["ids"])
        except NotFound:  # an older gateway
            return []

    def find_job(self, given: str) -> str:
        """Return the id of the only job whose id begins with `given`; `given` itself if there is none."""
        rows = self.get("/api/jobs", limit=1000)["jobs"] if _not_empty(given) else []
        found = [job["id"] for job in rows if job["id"].startswith(given)]
        if given in found or not found:
            return given
        if len(found) > 1:
            raise HangupError(_several(given, found))
        return str(found[0])

    def find_backend(self, given: str) -> str:
        """Return the name of a backend; raise if there is none. No beginning: gpu-1 may be gone, gpu-10 not."""
        names = [row["name"] for row in self.get("/api/backends")["backends"]]
        if given in names:
            return given
        raise NotFound(f"there is no backend {given}\n  hint: {did_you_mean(given, names) or 'backends: ' + ', '.join(names)}")


def _several(given: str, ids: list[str]) -> str:
    more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
    return f"{given} is the beginning of several ids: {', '.join(ids[:_IDS_SHOWN])}{more}"


def _not_empty(given: str) -> str:
    if not given:
        raise HangupError("an id is empty: perhaps a variable that is not set")
    return given


def silent_note(answer: dict[str, Any]) -> str:
    """Say which gateways or workers did not answer: what only they know is missing. Return "" if all did."""
    for noun in ("gateway", "worker"):
        if names := answer.get(f"{noun}s_silent"):
            return f"{plural(len(names), noun)} did not answer: {', '.join(map(str, names))}; their calls are missing here"
    return ""


def path_of(*parts: str) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


def _fault(error: urllib.error.HTTPError) -> HangupError:
    if target := error.headers.get("location", "") if 300 <= error.code < 400 else "":
        hint = "if that is your admin port, pass it with --admin; the token is not sent elsewhere"
        return HangupError(f"{error.url} redirects to {printable(target)}\n  hint: {hint}")
    try:
        message = printable(json.loads(error.read())["error"])
    except (ValueError, KeyError, TypeError):
        return HangupError(f"the admin port returned status {error.code}" + _hint(error))
    if not isinstance(message, str):  # an error as clients get it
        hint = f"that is not an admin port, but perhaps a gateway's data port; the admin port is {DEFAULT_URL} by default"
        return HangupError(f"{error.url} answered with status {error.code}\n  hint: {hint}")
    return NotFound(message) if error.code == 404 else HangupError(message + _hint(error))


def _hint(error: urllib.error.HTTPError) -> str:
    return f"\n  hint: set the admin token in ${TOKEN_VARIABLE}" if error.code == 401 else ""

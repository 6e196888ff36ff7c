"""`hangup jobs submit`: submits a file of requests as a batch and writes the results to a file."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hangup.errors import HangupError

DEFAULT_URL = "http://127.0.0.1:8080"
_KEY_VARIABLES = ("HANGUP_API_KEY", "OPENAI_API_KEY")
_TIMEOUT_S = 60.0
_PIECE_BYTES = 256 * 1024
_POLL_S = (0.1, 2.0)  # the poll interval, at first and in the long run
_BAR_WIDTH = 30
_ENDED = ("completed", "failed", "cancelled", "expired")
_EXAMPLES = """\
examples:
  hangup jobs submit requests.jsonl                      wait for the results and write requests.results.jsonl
  hangup jobs submit requests.jsonl -o out.jsonl --window 2h
  hangup jobs submit requests.jsonl --detach             print the id and exit

Each line of the file is a request in the format of OpenAI's Batch API:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [...]}}
The API key is read from $HANGUP_API_KEY or $OPENAI_API_KEY.
"""


def add_parser(subcommands: Any) -> None:
    parser = subcommands.add_parser(
        "submit",
        help="run a file of requests as a batch",
        description="Uploads a file of requests, runs it as a batch and downloads the results, in the order of the requests.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE.jsonl", type=Path)
    parser.add_argument("--url", metavar="URL", help=f"URL of the gateway (default: $HANGUP_URL or {DEFAULT_URL})")
    parser.add_argument(
        "--window",
        default="24h",
        metavar="TIME",
        help="completion window; hangup stops unfinished requests when it ends (default: 24h)",
    )
    parser.add_argument("--detach", action="store_true", help="do not wait for the results")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="file for the results (default: FILE.results.jsonl)")
    parser.add_argument("--json", action="store_true", help="print the batch as JSON at the end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    endpoint = _endpoint(path)
    gateway = _GatewayClient(arguments.url or os.environ.get("HANGUP_URL") or DEFAULT_URL)
    file = gateway.upload(path)
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": arguments.window}
    batch = gateway.request("POST", "/v1/batches", body)
    if arguments.detach:
        print(json.dumps(batch, indent=2) if arguments.json else batch["id"])
        return 0
    try:
        batch = _wait(gateway, batch)
    except KeyboardInterrupt:
        print(f"\n{batch['id']} is still running; to stop it: hangup jobs cancel {batch['id']}", file=sys.stderr)
        return 130
    output = arguments.output or path.with_suffix(".results.jsonl")
    count = _fetch_results(gateway, batch, output)
    if arguments.json:
        print(json.dumps(batch, indent=2))
    else:
        _print_summary(batch, output, count)
    return 0 if batch["status"] == "completed" and not batch["request_counts"]["failed"] else 1


def _endpoint(path: Path) -> str:
    """Return the endpoint of the first request; the gateway checks that all requests have the same."""
    try:
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
    except OSError as error:
        raise HangupError(f"cannot read {path}: {error.strerror}") from None
    try:
        return str(json.loads(first)["url"])
    except (ValueError, KeyError, TypeError):
        raise HangupError(f'{path}: the first line is not a request with a "url"; see `hangup jobs submit --help`') from None


def _wait(gateway: _GatewayClient, batch: dict[str, Any]) -> dict[str, Any]:
    began, pause = time.monotonic(), _POLL_S[0]
    with _SubmitProgress() as bar:
        while batch["status"] not in _ENDED:
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_S[1])
            batch = gateway.request("GET", f"/v1/batches/{batch['id']}")
            bar.show(batch, time.monotonic() - began)
    return batch


def _fetch_results(gateway: _GatewayClient, batch: dict[str, Any], output: Path) -> int:
    """Write the answers, then the errors, to one file; return how many there are."""
    ids = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
    if not ids:
        return 0
    count = 0
    with output.open("wb") as file:
        for id in ids:
            for piece in gateway.content(id):
                file.write(piece)
                count += piece.count(b"\n")
    return count


def _print_summary(batch: dict[str, Any], output: Path, count: int) -> None:
    counts = batch["request_counts"]
    print(f"{batch['id']} {batch['status']}: {counts['completed']} of {counts['total']} answered, {counts['failed']} failed")
    for problem in (batch["errors"] or {}).get("data", ()):
        where = f"line {problem['line']}: " if problem["line"] else ""
        print(f"  {where}{problem['message']}")
    if count:
        print(f"{count} results in {output}")


class _SubmitProgress:
    """Shows the batch's progress on one line of a terminal; shows nothing elsewhere."""

    def __init__(self) -> None:
        self._out = sys.stderr
        self._enabled = self._out.isatty()

    def __enter__(self) -> _SubmitProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def show(self, batch: dict[str, Any], spent_s: float) -> None:
        if not self._enabled:
            return
        counts = batch["request_counts"]
        done, total = counts["completed"] + counts["failed"], counts["total"]
        share = done / total if total and batch["status"] != "validating" else 0.0
        bar = "█" * round(share * _BAR_WIDTH) + "░" * (_BAR_WIDTH - round(share * _BAR_WIDTH))
        remaining = f"{spent_s / share - spent_s:.0f} s remaining" if share else ""
        self._out.write(f"\r\x1b[K{bar} {done}/{total} {batch['status']} {remaining}")
        self._out.flush()


class _GatewayClient:
    """A client for the gateway's data port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HangupError(f"--url: expected http://host:port, got {url!r}")
        self._url = f"{parts.scheme}://{parts.netloc}"
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        key = next((os.environ[name] for name in _KEY_VARIABLES if os.environ.get(name)), "")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def request(self, method: str, path: str, value: dict[str, Any] | None = None) -> dict[str, Any]:
        body = json.dumps(value).encode() if value is not None else None
        answer: dict[str, Any] = json.loads(self._send(method, path, body, {"content-type": "application/json"}).read())
        return answer

    def upload(self, path: Path) -> dict[str, Any]:
        boundary = secrets.token_hex(16)
        form_start = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{_quoted(path.name)}"\r\n\r\n'
        ).encode()
        form_end = f"\r\n--{boundary}--\r\n".encode()
        size = path.stat().st_size
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(len(form_start) + size + len(form_end)),
        }

        def pieces() -> Iterator[bytes]:
            yield form_start
            with path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece
            yield form_end

        answer: dict[str, Any] = json.loads(self._send("POST", "/v1/files", pieces(), headers).read())
        return answer

    def content(self, id: str) -> Iterator[bytes]:
        answer = self._send("GET", f"/v1/files/{id}/content", None, {})
        while piece := answer.read(_PIECE_BYTES):
            yield piece

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the gateway may answer before it has read all
                self._connection.request(method, path, body, {**self._headers, **headers})
            answer = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            hint = "\n  hint: start one with `hangup serve`, or pass its URL with --url"
            raise HangupError(f"cannot reach the gateway at {self._url}: {error}{hint}") from None
        if answer.status >= 400:
            raise HangupError(_error_message(answer))
        return answer


def _error_message(answer: http.client.HTTPResponse) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        return str(json.loads(answer.read())["error"]["message"])
    return f"the gateway returned status {answer.status}"


def _quoted(name: str) -> str:
    return name.replace('"', "%22").replace("\r", " ").replace("\n", " ")

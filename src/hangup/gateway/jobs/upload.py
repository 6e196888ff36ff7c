"""Parses the multipart form of `POST /v1/files` while it arrives, and writes the file to the store in parts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import File

_PART_BYTES = 256 * 1024
_UNWRITTEN_MAX = 8  # parts waiting for the disk before we stop reading from the client
_FIELD_BYTES_MAX = 4096
_FIELDS_MAX = 64  # per form; OpenAI's form has four
_FIELD_HEADER_BYTES_MAX = 8192
_SLICE_BYTES = 8192  # parsed at a time: the parser works byte by byte,
_PARSE_MAX_S = 0.005  # and after this long it yields to the event loop
_EXPIRES_S = (3600, 30 * 86_400)  # OpenAI's limits
_NO_FILE = "The form must have a field 'file' with a file name."


class Upload:
    """An upload in progress. If the store is slow, the client is not read until it has caught up."""

    def __init__(self, registry: JobRegistry, tenant: str, content_type: bytes, pause: Callable[[bool], None]) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise Refusal(reasons.BAD_FIELD, "Upload files as multipart/form-data.")
        self._registry = registry
        self._tenant = tenant
        self._pause = pause
        self._paused = False
        self._unparsed: deque[bytes] = deque()
        self._offset = 0  # offset in the first chunk
        self._scheduled_parse: asyncio.Handle | None = None  # scheduled continuation of the parser
        self._all_parsed = asyncio.Event()
        self._all_parsed.set()
        self._field_count = 0  # fields in the form
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._header = b""
        self._header_value = b""
        self._header_bytes = 0
        self._disposition = b""
        self._field_name = ""
        self._in_file_field = False
        self._field_value = bytearray()
        self._buffer = bytearray()
        self._unwritten: deque[bytes] = deque()
        self._parts_written = 0
        self._key: int | None = None
        self._failure: Exception | None = None
        self._complete = False
        self._writer: asyncio.Task[None] | None = None
        try:
            self._parser = self._new_parser(boundary)
        except FormParserError as error:
            raise Refusal(reasons.BAD_FIELD, f"The form cannot be read: {error}.") from None

    def _new_parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def feed(self, data: bytes) -> None:
        """Parse a chunk; raise a `Refusal` if the form is invalid. A large chunk is finished later, with the client paused."""
        self._unparsed.append(data)
        if self._scheduled_parse is None:
            self._parse()
        if self._failure is not None:
            raise self._failure

    def _parse(self) -> None:
        self._scheduled_parse = None
        loop = asyncio.get_running_loop()
        until = loop.time() + _PARSE_MAX_S
        try:
            while self._unparsed and self._failure is None:
                data = self._unparsed[0]
                self._parser.write(data[self._offset : self._offset + _SLICE_BYTES])
                self._offset += _SLICE_BYTES
                if self._offset >= len(data):
                    self._unparsed.popleft()
                    self._offset = 0
                if self._unparsed and loop.time() >= until:
                    self._scheduled_parse = loop.call_later(0, self._parse)
                    break
        except FormParserError as error:
            self._failure = Refusal(reasons.BAD_FIELD, f"The form cannot be read: {error}.")
        except Refusal as refusal:
            self._failure = refusal
        if self._failure is not None:
            self._unparsed.clear()
        if self._scheduled_parse is None:
            self._all_parsed.set()
        else:
            self._all_parsed.clear()
        self._pause_or_resume_client()

    def _pause_or_resume_client(self) -> None:
        """Pause or resume reading from the client, depending on the backlog."""
        pause = self._scheduled_parse is not None or (len(self._unwritten) > _UNWRITTEN_MAX and self._failure is None)
        if pause != self._paused:
            self._paused = pause
            self._pause(pause)

    async def finish(self) -> File:
        """Finish a complete form: return the stored file, or raise a `Refusal`."""
        await self._all_parsed.wait()
        if self._failure is not None:
            raise self._failure
        if not self._complete:
            raise Refusal(reasons.BAD_FIELD, "The form ends before its last boundary.")
        if self._filename is None:
            raise Refusal(reasons.BAD_FIELD, _NO_FILE)
        purpose = self._fields.get("purpose")
        if not purpose:
            raise Refusal(reasons.BAD_FIELD, "The form must have a field 'purpose'.")
        expires = self._expiry()
        self._write_buffer(flush=True)
        if self._writer is not None:
            await self._writer
        if self._failure is not None:
            raise self._failure
        if self._key is None:
            raise Refusal(reasons.BAD_FIELD, "The file is empty.")
        store, key, filename = self._registry.store, self._key, self._filename
        file = await store.do(lambda: store.files.mark_ready(key, purpose, filename, expires))
        self._key = None
        return file

    def close(self) -> None:
        """Discard an upload that was not finished."""
        if self._scheduled_parse is not None:
            self._scheduled_parse.cancel()
        if self._paused:
            self._paused = False
            self._pause(False)
        self._unwritten.clear()
        if self._writer is not None or self._key is not None:
            self._registry.start_task(self._discard())

    async def _discard(self) -> None:
        """Delete what was written. A part that is being written is waited for: only then is it known which file it went to."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        key, self._key = self._key, None
        store = self._registry.store
        if key is not None:
            await store.do(lambda: store.files.delete(key))

    def _expiry(self) -> float | None:
        given = self._fields.get("expires_after[seconds]")
        if given is None:
            return None
        least, most = _EXPIRES_S
        if not is_number(given) or not least <= int(given) <= most:
            raise Refusal(reasons.BAD_FIELD, f"'expires_after[seconds]' must be a number from {least} to {most}.")
        return time.time() + int(given)

    # To the store

    def _write_buffer(self, *, flush: bool = False) -> None:
        while len(self._buffer) >= _PART_BYTES or (flush and self._buffer):
            self._unwritten.append(bytes(self._buffer[:_PART_BYTES]))
            del self._buffer[:_PART_BYTES]
        if self._unwritten and (self._writer is None or self._writer.done()):
            self._writer = self._registry.start_task(self._write())
        self._pause_or_resume_client()

    async def _write(self) -> None:
        try:
            while self._unwritten and self._failure is None:
                data = self._unwritten.popleft()
                self._key = await self._registry.store.do(partial(self._write_part, self._key, self._parts_written, data))
                self._parts_written += 1
                self._pause_or_resume_client()
        except Exception as error:
            self._failure = error
        self._pause_or_resume_client()

    def _write_part(self, key: int | None, n: int, data: bytes) -> int:
        """Write a part, in the store's thread; return the key of the file."""
        files = self._registry.store.files
        self._registry.quotas.check(self._tenant, size=len(data))
        if key is None:
            key = files.begin(f"file-{secrets.token_hex(12)}", self._tenant, time.time())
        files.add_part(key, n, data)
        return key

    # From the parser

    def _on_part_begin(self) -> None:
        self._disposition, self._field_name, self._in_file_field = b"", "", False
        self._field_value.clear()
        self._field_count += 1
        self._header_bytes = 0
        if self._field_count > _FIELDS_MAX:
            raise Refusal(reasons.BAD_FIELD, f"The form has more than {_FIELDS_MAX} fields.")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._count_header(end - start)

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]
        self._count_header(end - start)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _FIELD_HEADER_BYTES_MAX:
            raise Refusal(reasons.BAD_FIELD, "The headers of a field of the form are too long.")

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field_name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        if self._field_name == "file" and filename is not None and self._filename is None:
            self._in_file_field, self._filename = True, filename.decode("utf-8", "replace")[:255] or "upload"

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file_field:
            self._buffer += memoryview(data)[start:end]
            if len(self._buffer) >= _PART_BYTES:
                self._write_buffer()
        elif len(self._field_value) + end - start <= _FIELD_BYTES_MAX:
            self._field_value += data[start:end]
        else:
            raise Refusal(reasons.BAD_FIELD, f"The form's field {self._field_name[:80]!r} is too long.")

    def _on_part_end(self) -> None:
        if not self._in_file_field and self._field_name:
            self._fields[self._field_name[:80]] = self._field_value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._complete = True


def is_number(text: str) -> bool:
    """Return whether `text` is a decimal number, and short enough that parsing it is cheap."""
    return text.isascii() and text.isdigit() and len(text) <= 18

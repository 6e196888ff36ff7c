"""OpenAI's files: `/v1/files`, `/v1/files/{id}`, `/v1/files/{id}/content`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hangup.core import reasons
from hangup.errors import Refusal
from hangup.jobs.board import Board
from hangup.jobs.http import Answer, Asked, Json, is_number
from hangup.store.jobs import File

_PART_BYTES = 256 * 1024
_UNWRITTEN_MAX = 8  # parts that wait for the disk; then the client has to wait, too
_FIELD_BYTES_MAX = 4096
_PAGE_MAX = 10_000
_EXPIRES_S = (3600, 30 * 86_400)  # what OpenAI allows
_NO_FILE = "The form must have a field 'file' with a file name."

Lines = Callable[[File, str], AsyncIterator[bytes]]


class Gone(Refusal):
    """What is being read was deleted."""


class Files:
    def __init__(self, board: Board, lines_of_job: Lines) -> None:
        self._board = board
        self._lines_of_job = lines_of_job

    async def upload(self, asked: Asked) -> Answer:
        assert asked.upload is not None
        return Answer.json(shown(await asked.upload.finish()))

    async def list(self, asked: Asked) -> Answer:
        store, query = self._board.store, asked.query
        count = asked.number("limit", _PAGE_MAX, 1, _PAGE_MAX)
        ascending = query.get("order") == "asc"
        from_ = (await self._find(asked, query["after"])).key if "after" in query else None
        before, after = (None, from_ or 0) if ascending else (from_, None)
        rows = await store.do(lambda: store.files.page(asked.tenant, query.get("purpose"), before, after, count + 1))
        shown_rows = []
        for row in rows[:count]:
            with contextlib.suppress(Gone):  # deleted since, and so not listed
                shown_rows.append(shown(await self._counted(row, asked.tenant)))
        return Answer.json(listed(shown_rows, has_more=len(rows) > count))

    async def retrieve(self, asked: Asked, id: str) -> Answer:
        return Answer.json(shown(await self._counted(await self._find(asked, id), asked.tenant)))

    async def content(self, asked: Asked, id: str) -> Answer:
        file = await self._find(asked, id)
        name = file.filename.encode("ascii", "replace").replace(b'"', b"").replace(b"\r", b"").replace(b"\n", b"")
        headers = [(b"content-disposition", b'attachment; filename="' + name + b'"')]
        pieces = self._parts(file) if file.job is None else self._lines_of_job(file, asked.tenant)
        return Answer(content_type=b"application/octet-stream", headers=headers, pieces=pieces)

    async def delete(self, asked: Asked, id: str) -> Answer:
        store, file = self._board.store, await self._find(asked, id)
        await store.do(lambda: store.files.delete(file.key))
        return Answer.json({"id": id, "object": "file", "deleted": True})

    async def _find(self, asked: Asked, id: str) -> File:
        store = self._board.store
        file = await store.do(lambda: store.files.find(id, asked.tenant))
        if file is None:
            raise Refusal(reasons.NOT_FOUND, f"There is no file {id[:80]!r}.")
        return file

    async def _counted(self, file: File, tenant: str) -> File:
        """Results are put together when they are read: how long they are is counted when somebody first asks."""
        if file.bytes is not None:
            return file
        store, size = self._board.store, 0
        async for piece in self._lines_of_job(file, tenant):
            size += len(piece)
        await store.do(lambda: store.files.counted(file.key, size))
        return file._replace(bytes=size)

    async def _parts(self, file: File) -> AsyncIterator[bytes]:
        async for part in parts(self._board, file):
            yield part


async def parts(board: Board, file: File) -> AsyncIterator[bytes]:
    """All of a file; a Gone if it is deleted meanwhile, which must not look like its end."""
    n = read = 0
    while (data := await board.store.do(partial(board.store.files.part, file.key, n))) is not None:
        yield data
        n += 1
        read += len(data)
    if read != file.bytes:
        raise Gone(reasons.NOT_FOUND, f"The file {file.id} was deleted while it was read.")


def shown(file: File) -> Json:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "expires_at": int(file.expires) if file.expires is not None else None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def listed(rows: list[Json], *, has_more: bool) -> Json:
    """A page in OpenAI's shape."""
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return {"object": "list", "data": rows, "first_id": first, "last_id": last, "has_more": has_more}


class Upload:
    """A form with a file, taken apart as it comes; the file goes to the store in parts, the client waits when that is slow."""

    def __init__(self, board: Board, tenant: str, content_type: bytes, pause: Callable[[bool], None]) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise Refusal(reasons.BAD_FIELD, "A file is uploaded as multipart/form-data.")
        self._board = board
        self._tenant = tenant
        self._pause = pause
        self._paused = False
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._header = b""
        self._header_value = b""
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._buffer = bytearray()
        self._unwritten: deque[bytes] = deque()
        self._written = 0
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
        """Raises a Refusal for what is no such form."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise Refusal(reasons.BAD_FIELD, f"The form cannot be read: {error}.") from None
        if self._failure is not None:
            raise self._failure

    async def finish(self) -> File:
        """The form is complete: the file is there, or a Refusal says why not."""
        if not self._complete:
            raise Refusal(reasons.BAD_FIELD, "The form ends before its last boundary.")
        if self._filename is None:
            raise Refusal(reasons.BAD_FIELD, _NO_FILE)
        purpose = self._fields.get("purpose")
        if not purpose:
            raise Refusal(reasons.BAD_FIELD, "The form must have a field 'purpose'.")
        expires = self._expires()
        self._write_buffer(all_of_it=True)
        if self._writer is not None:
            await self._writer
        if self._failure is not None:
            raise self._failure
        if self._key is None:
            raise Refusal(reasons.BAD_FIELD, "The file is empty.")
        store, key, filename = self._board.store, self._key, self._filename
        file = await store.do(lambda: store.files.ready(key, purpose, filename, expires))
        self._key = None
        return file

    def close(self) -> None:
        """What was not finished is given up."""
        if self._writer is not None:
            self._writer.cancel()
        key, store = self._key, self._board.store
        if key is not None:
            self._board.own(store.do(lambda: store.files.give_up(key)))

    def _expires(self) -> float | None:
        given = self._fields.get("expires_after[seconds]")
        if given is None:
            return None
        least, most = _EXPIRES_S
        if not is_number(given) or not least <= int(given) <= most:
            raise Refusal(reasons.BAD_FIELD, f"'expires_after[seconds]' must be a number from {least} to {most}.")
        return time.time() + int(given)

    # To the store

    def _write_buffer(self, *, all_of_it: bool = False) -> None:
        while len(self._buffer) >= _PART_BYTES or (all_of_it and self._buffer):
            self._unwritten.append(bytes(self._buffer[:_PART_BYTES]))
            del self._buffer[:_PART_BYTES]
        if self._unwritten and (self._writer is None or self._writer.done()):
            self._writer = self._board.own(self._write())
        if len(self._unwritten) > _UNWRITTEN_MAX and not self._paused:
            self._paused = True
            self._pause(True)

    async def _write(self) -> None:
        try:
            while self._unwritten and self._failure is None:
                data = self._unwritten.popleft()
                self._key = await self._board.store.do(partial(self._write_part, self._key, self._written, data))
                self._written += 1
        except Exception as error:
            self._failure = error
        if self._paused:
            self._paused = False
            self._pause(False)

    def _write_part(self, key: int | None, n: int, data: bytes) -> int:
        """In the store's thread."""
        files = self._board.store.files
        self._board.check_quota(self._tenant, size=len(data))
        if key is None:
            key = files.begin(f"file-{secrets.token_hex(12)}", self._tenant, time.time())
        files.add(key, n, data)
        return key

    # From the parser

    def _on_part_begin(self) -> None:
        self._disposition, self._name, self._is_file = b"", "", False
        self._value.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        if self._name == "file" and filename is not None and self._filename is None:
            self._is_file, self._filename = True, filename.decode("utf-8", "replace")[:255] or "upload"

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._buffer += memoryview(data)[start:end]
            if len(self._buffer) >= _PART_BYTES:
                self._write_buffer()
        elif len(self._value) + end - start <= _FIELD_BYTES_MAX:
            self._value += data[start:end]
        else:
            self._failure = Refusal(reasons.BAD_FIELD, f"The form's field {self._name[:80]!r} is too long.")

    def _on_part_end(self) -> None:
        if not self._is_file and self._name:
            self._fields[self._name[:80]] = self._value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._complete = True

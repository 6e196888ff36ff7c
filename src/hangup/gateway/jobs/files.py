"""OpenAI's files API: `/v1/files`, `/v1/files/{id}`, `/v1/files/{id}/content`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from functools import partial

from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, Json
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import File

_PAGE_MAX = 10_000
_UNSAFE_IN_NAME = re.compile(rb'[^\x20-\x7e]|["\\]')  # characters that a quoted file name in a header must not contain

ReadLines = Callable[[File, str], AsyncIterator[bytes]]


class Gone(Refusal):
    """The object was deleted while it was being read."""


class Files:
    """Handlers of the files API."""

    def __init__(self, registry: JobRegistry, result_lines: ReadLines) -> None:
        self._registry = registry
        self._result_lines = result_lines

    async def upload(self, request: JobHttpRequest) -> JobHttpResponse:
        assert request.upload is not None
        return JobHttpResponse.json(file_json(await request.upload.finish()))

    async def list(self, request: JobHttpRequest) -> JobHttpResponse:
        store, query = self._registry.store, request.query
        count = request.query_number("limit", _PAGE_MAX, 1, _PAGE_MAX)
        ascending = query.get("order") == "asc"
        cursor = (await self._find(request, query["after"])).key if "after" in query else None
        before, after = (None, cursor or 0) if ascending else (cursor, None)
        rows = await store.do(lambda: store.files.page(request.tenant, query.get("purpose"), before, after, count + 1))
        data = []
        for row in rows[:count]:
            with contextlib.suppress(Gone):  # deleted meanwhile: do not list it
                data.append(file_json(await self._with_size(row, request.tenant)))
        return JobHttpResponse.json(list_json(data, has_more=len(rows) > count))

    async def retrieve(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        return JobHttpResponse.json(file_json(await self._with_size(await self._find(request, id), request.tenant)))

    async def content(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        file = await self._find(request, id)
        name = _UNSAFE_IN_NAME.sub(b"_", file.filename.encode("ascii", "replace"))
        headers = [(b"content-disposition", b'attachment; filename="' + name + b'"')]
        pieces = self._parts(file) if file.job is None else self._result_lines(file, request.tenant)
        return JobHttpResponse(content_type=b"application/octet-stream", headers=headers, pieces=pieces)

    async def delete(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        store, file = self._registry.store, await self._find(request, id)
        await store.do(lambda: store.files.delete(file.key))
        return JobHttpResponse.json({"id": id, "object": "file", "deleted": True})

    async def _find(self, request: JobHttpRequest, id: str) -> File:
        store = self._registry.store
        file = await store.do(lambda: store.files.find(id, request.tenant))
        if file is None:
            raise Refusal(reasons.NOT_FOUND, f"There is no file {id[:80]!r}.")
        return file

    async def _with_size(self, file: File, tenant: str) -> File:
        """Return `file` with its size. Result files are generated on read, so their size is measured on first use."""
        if file.bytes is not None:
            return file
        store, size = self._registry.store, 0
        async for piece in self._result_lines(file, tenant):
            size += len(piece)
        await store.do(lambda: store.files.set_size(file.key, size))
        return file._replace(bytes=size)

    async def _parts(self, file: File) -> AsyncIterator[bytes]:
        async for part in parts(self._registry, file):
            yield part


async def parts(registry: JobRegistry, file: File) -> AsyncIterator[bytes]:
    """Yield all parts of a file; raise `Gone` if it is deleted meanwhile, which must not look like its end."""
    n = read = 0
    while (data := await registry.store.do(partial(registry.store.files.part, file.key, n))) is not None:
        yield data
        n += 1
        read += len(data)
    if read != file.bytes:
        raise Gone(reasons.NOT_FOUND, f"The file {file.id} was deleted while it was read.")


def file_json(file: File) -> Json:
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


def list_json(rows: list[Json], *, has_more: bool) -> Json:
    """Return a page of a list in OpenAI's format."""
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return {"object": "list", "data": rows, "first_id": first, "last_id": last, "has_more": has_more}

"""Stores uploaded files in parts, so that neither writing nor reading holds a whole file in memory."""

from __future__ import annotations

from hangup.gateway.store.jobs.rows import File
from hangup.gateway.store.worker_thread import Connection

_COLUMNS = "key, id, purpose, filename, created, expires, bytes, job"


class FileTable:
    """The tables `file` and `part`."""

    _skip_locked = ""  # see `JobTable`

    def __init__(self, db: Connection) -> None:
        self._db = db

    # Uploading: begin, add parts, mark ready. `prune` deletes files that never became ready.

    def begin(self, id: str, tenant: str, now: float) -> int:
        ((key,),) = self._db.execute(
            "INSERT INTO file (id, tenant, purpose, filename, created, bytes) VALUES (?, ?, '', '', ?, 0) RETURNING key",
            (id, tenant, now),
        ).fetchall()
        return int(key)

    def add_part(self, key: int, n: int, data: bytes) -> None:
        self._db.execute("INSERT INTO part VALUES (?, ?, ?)", (key, n, data))
        self._db.execute("UPDATE file SET bytes = bytes + ? WHERE key = ?", (len(data), key))

    def mark_ready(self, key: int, purpose: str, filename: str, expires: float | None) -> File:
        self._db.execute(
            "UPDATE file SET purpose = ?, filename = ?, expires = ?, ready = 1 WHERE key = ?", (purpose, filename, expires, key)
        )
        return File(*self._db.execute(f"SELECT {_COLUMNS} FROM file WHERE key = ?", (key,)).fetchone())  # noqa: S608 - ours

    # Reading

    def find(self, id: str, tenant: str) -> File | None:
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM file WHERE id = ? AND tenant = ? AND ready = 1",  # noqa: S608 - ours
            (id, tenant),
        ).fetchone()
        return File(*row) if row is not None else None

    def page(self, tenant: str, purpose: str | None, before: int | None, after: int | None, count: int) -> list[File]:
        """Return files older than `before`, newest first; or, if `after` is given, files newer than `after`, oldest first."""
        order = "ASC" if after is not None else "DESC"
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM file WHERE tenant = ?1 AND (CAST(?2 AS TEXT) IS NULL OR purpose = ?2) AND ready = 1"  # noqa: S608
            f" AND key < ?3 AND key > ?4 ORDER BY key {order} LIMIT ?5",
            (tenant, purpose, before if before is not None else 1 << 62, after or 0, count),
        )
        return [File(*row) for row in rows]

    def part(self, key: int, n: int) -> bytes | None:
        row = self._db.execute("SELECT data FROM part WHERE file = ? AND n = ?", (key, n)).fetchone()
        return row[0] if row is not None else None

    def set_size(self, key: int, size: int) -> None:
        """Set the size of a file that is not stored but generated when it is read."""
        self._db.execute("UPDATE file SET bytes = ? WHERE key = ?", (size, key))

    # Deleting

    def delete(self, key: int) -> None:
        self._db.execute("DELETE FROM file WHERE key = ?", (key,))

    def prune(self, now: float, created_before: float, unready_before: float) -> int:
        """Delete a few expired files and return how many, so that other work is not held up; call it until it returns 0."""
        return self._db.execute(
            "DELETE FROM file WHERE key IN (SELECT key FROM file WHERE expires < ?"  # noqa: S608 - ours
            f" OR (job IS NULL AND created < ?) OR (ready = 0 AND created < ?) LIMIT 10{self._skip_locked})",
            (now, created_before, unready_before),
        ).rowcount

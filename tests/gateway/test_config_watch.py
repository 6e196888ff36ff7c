"""Which files `config_watch_s` watches: those of the configuration in use, at each look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hangup.config import BackendSettings, Settings
from hangup.config.load import Configuration
from hangup.gateway import config_watch


class Watched:
    """A server whose reload takes the next configuration; without one, the reload fails."""

    def __init__(self, *key_files: str) -> None:
        self.configuration = self.naming(*key_files)
        self.following: Configuration | None = None
        self.reloads = 0

    @staticmethod
    def naming(*key_files: str) -> Configuration:
        backends = tuple(BackendSettings(url=f"http://{n}", api_key_file=name) for n, name in enumerate(key_files))
        return Configuration(Settings(config_watch_s=0.01, backend=backends), {})

    def reload(self) -> None:
        self.reloads += 1
        if self.following is not None:
            self.configuration, self.following = self.following, None

    async def notices(self, path: Path) -> None:
        """Wait until a change of this file causes a reload."""
        await asyncio.sleep(0.3)  # a reload that has another cause is over by then
        before = self.reloads

        def change() -> None:
            path.write_text(path.read_text() + "x")

        await until(lambda: self.reloads > before, change)


async def until(condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    for _ in range(600):
        if condition():
            return
        meanwhile()
        await asyncio.sleep(0.1)
    raise AssertionError("not within 60 s")


def watch(server: Watched, story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with config_watch.reloading_on_change(server):
            await asyncio.sleep(0.1)
            await story()

    asyncio.run(main())


def test_a_removed_backends_file_may_go_and_an_added_one_is_watched(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for path in (one, two, three):
        path.write_text("key")
    server = Watched(str(one), str(two))

    async def story() -> None:
        server.following = server.naming(str(two), str(three))
        await server.notices(one)
        one.unlink()
        await server.notices(two)
        await server.notices(three)

    watch(server, story)


def test_one_missing_file_does_not_hide_the_others(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.write_text("key")
    server = Watched(str(one), str(two))
    watch(server, lambda: server.notices(two))


def test_a_file_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("key")
    server = Watched("~/key")
    watch(server, lambda: server.notices(tmp_path / "key"))


def test_a_failed_reload_is_tried_again_until_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_watch, "_RETRY_S", 0.0)
    key = tmp_path / "key"
    key.write_text("key")
    server = Watched(str(key))

    async def story() -> None:
        await server.notices(key)
        await until(lambda: server.reloads >= 5)
        server.following = server.naming(str(key))
        await until(lambda: server.following is None)

    watch(server, story)

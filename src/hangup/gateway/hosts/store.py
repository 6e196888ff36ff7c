"""The store of several hosts: Redis or Valkey; a single server, Sentinel or Cluster.

All keys share a hash tag, so a Cluster keeps them on one node, which scripts need:

    …:lead      owner ("TERM MEMBER") and beat
    …:members   each member's snapshot
    …:orders    the leader's orders to each member
    …:calls:M   member M's calls in engines, which others stop if it dies
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import orjson

from hangup.core.members import Lead, LeftCall
from hangup.errors import HangupError
from hangup.gateway.members.member import CallsReport
from hangup.gateway.store.postgresql import without_password

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.credentials import CredentialProvider

OLDEST = (6, 0)
_KEPT_S = 3600  # keys without a living gateway are removed after this; nothing else depends on it
_MARK = "mark"  # a field in the hash of calls: without it, the server has lost the others, too

_TAKE = """
local owner, beat = redis.call('HGET', KEYS[1], 'owner') or '', redis.call('HGET', KEYS[1], 'beat') or ''
if owner ~= ARGV[1] or beat ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'beat', '0')
return redis.call('HGETALL', KEYS[2])
"""
_WRITE = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'beat', ARGV[2])
for i = 4, 3 + ARGV[3] do
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('DEL', KEYS[4] .. ARGV[i])
end
for i = 4 + ARGV[3], #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], 3600) end
return 1
"""
_GIVE_UP = "if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class SharedStateFailed(HangupError):
    """The store cannot be used now."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the store answers to a snapshot."""

    lead: Lead | None
    orders: dict[str, Any]  # the leader's to this member; empty if there are none
    has_calls: bool  # False: the server has lost this member's calls
    snapshots: dict[str, dict[str, Any]]  # of all members, if they were asked for


class Store:
    def __init__(self, url: str, name: str, timeout_s: float, password: Callable[[], str] | None = None) -> None:
        """`name`: gateways that use the same one share their state. `password` is asked for each new connection, if the
        address has none."""
        self._url, self.address = url, without_password(url)
        self._client, self._in_cluster = _client(url, timeout_s, password), "+cluster://" in url
        prefix = f"hangup:{{{name}}}:"
        self._lead, self._orders, self._members = prefix + "lead", prefix + "orders", prefix + "members"
        self._calls = prefix + "calls:"

    async def check(self) -> None:
        """Raise `SharedStateFailed` if the server cannot be used."""
        info = await self._done(self._client.info("server"))
        if "redis_version" not in info:  # a Cluster answers by node
            info = next(iter(info.values()))
        version = str(info["redis_version"])
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
            raise SharedStateFailed(f"cannot use {self.address}: hangup needs Redis 6.0 or newer, or Valkey; this is {version}")

    async def own_host(self) -> str:
        """Return the address of this host that reaches the server; no packet is sent for it."""
        parts = urlsplit(self._url)
        host = parts.netloc.rpartition("@")[2].partition(",")[0].rpartition(":")[0] or parts.hostname
        if parts.scheme == "unix" or not host:
            return "127.0.0.1"
        loop = asyncio.get_running_loop()
        try:
            family, kind, _, _, address = (await loop.getaddrinfo(host.strip("[]"), 9, type=socket.SOCK_DGRAM))[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                own: str = probe.getsockname()[0]
                return own
        except OSError as error:
            raise SharedStateFailed(f"cannot use {self.address}: {error.strerror or error}") from None

    async def close(self) -> None:
        pool = getattr(self._client, "connection_pool", None)
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            await sentinel.aclose()
        await self._client.aclose()

    # A member

    async def exchange(
        self, me: str, snapshot: Mapping[str, object], calls: CallsReport, *, whole: bool, leads: bool
    ) -> Exchange:
        """Write this member's snapshot and calls, and read what concerns it. `whole`: these are all of its calls."""
        mine = self._calls + me
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(self._members, me, orjson.dumps(snapshot))
        if whole:
            pipe.delete(mine)
            pipe.hset(mine, _MARK, "")
        if calls.new:
            pipe.hset(mine, mapping={call.id: orjson.dumps(call.row()) for call in calls.new})
        if calls.gone:
            pipe.hdel(mine, *calls.gone)
        pipe.expire(mine, _KEPT_S)
        pipe.hmget(self._lead, ["owner", "beat"])
        pipe.hget(self._orders, me)
        pipe.hexists(mine, _MARK)
        if leads:
            pipe.hgetall(self._members)
        answers = await self._done(pipe.execute())
        snapshots: dict[bytes, bytes] = answers.pop() if leads else {}
        (owner, beat), orders, has_calls = answers[-3:]
        return Exchange(
            _read_lead(owner, beat),
            orjson.loads(orders) if orders else {},
            bool(has_calls),
            {name.decode(): orjson.loads(text) for name, text in snapshots.items()},
        )

    async def leave(self, me: str, snapshot: Mapping[str, object], term: int) -> None:
        """Write a last snapshot, and give up the lead."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(self._members, me, orjson.dumps(snapshot))
        pipe.delete(self._calls + me)
        await self._done(pipe.execute())
        await self._done(self._client.eval(_GIVE_UP, 1, self._lead, _owner(me, term)))

    # The leader

    async def take_lead(self, me: str, term: int, seen: Lead | None) -> dict[str, dict[str, Any]] | None:
        """Take the lead, unless it has changed since it was `seen`; return the orders of leaders before. They stay there,
        and nobody obeys them: this answer may be lost, and they say what a silent member may hold."""
        owner, beat = ("", "") if seen is None else (_owner(seen.member, seen.term), str(seen.beat))
        keys = [self._lead, self._orders]
        found = await self._done(self._client.eval(_TAKE, 2, *keys, owner, beat, _owner(me, term)))
        if found is None:
            return None
        return {found[at].decode(): orjson.loads(found[at + 1]) for at in range(0, len(found), 2)}

    async def write_orders(self, lead: Lead, orders: Mapping[str, Mapping[str, object]], removed: Iterable[str]) -> bool:
        """Write orders to members, and remove those that are gone; return False if somebody else leads."""
        gone = list(removed)
        texts = [part for member, order in orders.items() for part in (member, orjson.dumps(order))]
        keys = [self._lead, self._orders, self._members, self._calls]
        values = [_owner(lead.member, lead.term), str(lead.beat), str(len(gone)), *gone, *texts]
        return bool(await self._done(self._client.eval(_WRITE, 4, *keys, *values)))

    async def calls_of(self, member: str) -> list[LeftCall]:
        """Return the calls that a member had in engines."""
        found = await self._done(self._client.hgetall(self._calls + member))
        return [LeftCall(*orjson.loads(row)) for id, row in found.items() if id.decode() != _MARK]

    async def _done(self, work: object) -> Any:
        """Wait for the server; every way in which it fails becomes a `SharedStateFailed`."""
        from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415 (an extra)

        try:
            return await cast("Awaitable[object]", work)
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:  # the second is no RedisError
            if self._in_cluster:  # another node may have the keys by now: the client must ask again where they are
                with contextlib.suppress(RedisError, OSError):
                    await self._client.aclose()
            raise SharedStateFailed(f"cannot use {self.address}: {_reason(error)}") from None


def _owner(member: str, term: int) -> str:
    return f"{term} {member}"


def _read_lead(owner: bytes | None, beat: bytes | None) -> Lead | None:
    if not owner:
        return None
    term, _, member = owner.decode().partition(" ")
    return Lead(member, int(term), int(beat or 0))


def _reason(error: Exception) -> str:
    """Say what is wrong in the words of the server, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "WRONGPASS" in text or "invalid username-password" in text or "invalid password" in text:
        return f"wrong password ({text})"
    if "NOAUTH" in text or "Authentication required" in text or "already authenticated" in text:
        return "the server needs a password: redis://:PASSWORD@HOST"
    if (unknown := re.match(r"No master found for '(.*?)'", text)) is not None:  # what follows are the client's own objects
        return f"no Sentinel that answers knows a master of the service {unknown[1]}"
    if "used memory > 'maxmemory'" in text:
        return "it is full: its memory has reached maxmemory"
    if "read only replica" in text:
        return "it is a replica, which only its master can change"
    return text


def _client(url: str, timeout_s: float, password: Callable[[], str] | None) -> Redis:
    """Return a client that connects when it is first used. Raise `HangupError` if the address or the installation is wrong."""
    try:
        from redis.asyncio import Redis, RedisCluster  # noqa: PLC0415 (an extra)
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.asyncio.sentinel import Sentinel  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
    except ImportError:
        raise HangupError("shared_state needs the client for Redis: pip install 'hangup[redis]'") from None
    # The next snapshot is the retry.
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # servers that are too old do not know the other one, and could not say so
    }
    if password is not None:
        url, user = _without_user(url)
        options["credential_provider"] = _login(user, password)
    try:
        if "+cluster://" in url:
            cluster = RedisCluster.from_url(url.replace("+cluster://", "://"), **options)
            return cast("Redis", cluster)
        if "+sentinel://" in url:
            return _by_sentinel(url, Sentinel, options)
        return Redis.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise HangupError(f"shared_state: {without_password(url)} is no address of a store: {error}") from None


def _login(user: str, password: Callable[[], str]) -> CredentialProvider:
    from redis.credentials import CredentialProvider  # noqa: PLC0415

    class Login(CredentialProvider):
        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            return (user, password()) if user else (password(),)

        async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
            return self.get_credentials()

    return Login()


def _without_user(url: str) -> tuple[str, str]:
    """Return the address without its user, and the user: the client takes them together with the password only."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=hosts)), unquote(login.rstrip(":"))


def _by_sentinel(url: str, sentinel: Any, options: dict[str, Any]) -> Redis:
    """Read redis+sentinel://:PASSWORD@HOST:PORT,HOST:PORT/SERVICE?db=N; the password is the server's."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    addresses = []
    for host in hosts.split(","):
        name, _, port = host.rpartition(":") if ":" in host else (host, "", "26379")
        addresses.append((name, int(port)))
    query = dict(parse_qsl(parts.query))
    access = {"username": user or None, "password": password or None, "ssl": parts.scheme.startswith("rediss")}
    access = {name: value for name, value in access.items() if value}
    asks = {name: value for name, value in options.items() if name != "credential_provider"}  # the server's, not theirs
    asks["password"] = query.pop("sentinel_password", None)
    service = parts.path.strip("/") or "mymaster"
    found = sentinel(addresses, sentinel_kwargs=asks, **options, **access)
    db = int(query.pop("db", "0"))
    if query:
        raise ValueError(f"unknown options: {urlencode(query)}")
    client: Redis = found.master_for(service, db=db)
    return client

"""The store of several hosts: Redis or Valkey; a single server, Sentinel or Cluster.

All keys share a hash tag, so a Cluster keeps them on one node, which scripts need:

    …:lead      owner ("TERM MEMBER") and beat
    …:members   each member's snapshot
    …:orders    the leader's orders to each member
    …:calls:M   member M's calls in engines, which others stop if it dies
    …:mail:M    messages to member M
    …:stops     the leader's record of ended calls that engines have not confirmed to have stopped,
    …:steps     and of the last step on each backend's ladder, for the next leader
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

from hangup.core.members import EndedCall, Lead, LeftCall, RecordChanges
from hangup.errors import HangupError
from hangup.gateway.members.member import CallsReport
from hangup.gateway.store.postgresql import without_password

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.credentials import CredentialProvider

OLDEST = (6, 0)
_KEPT_S = 3600  # keys without a living gateway are removed after this; nothing else depends on it
_MARK = "mark"  # a field in the hash of calls: without it, the server has lost the others, too

_MAIL_MAX = 1000  # entries that wait for a member; one that does not read them loses the oldest
_MAIL_READ = 100  # entries at a time

_TAKE = """
local owner, beat = redis.call('HGET', KEYS[1], 'owner') or '', redis.call('HGET', KEYS[1], 'beat') or ''
if owner ~= ARGV[1] or beat ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'beat', '0')
return {redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]), redis.call('HGETALL', KEYS[4])}
"""
_WRITE = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'beat', ARGV[2])
for i = 4, 3 + ARGV[3] do
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('DEL', KEYS[4] .. ARGV[i], KEYS[5] .. ARGV[i])
end
for i = 4 + ARGV[3], #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], 3600) end
return 1
"""
_RECORD = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then redis.call('DEL', KEYS[2], KEYS[3]) end
for i = 4, 3 + ARGV[3] do redis.call('HDEL', KEYS[2], ARGV[i]) end
for i = 4 + ARGV[3], #ARGV, 3 do redis.call('HSET', KEYS[2 + ARGV[i]], ARGV[i + 1], ARGV[i + 2]) end
for i = 2, 3 do redis.call('EXPIRE', KEYS[i], 3600) end
return 1
"""
_POST = """
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  redis.call('RPUSH', KEYS[2] .. ARGV[i], ARGV[i + 1])
  redis.call('LTRIM', KEYS[2] .. ARGV[i], -ARGV[2], -1)
  redis.call('EXPIRE', KEYS[2] .. ARGV[i], 60)
end
return 1
"""
_DRAIN = """
local found = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
redis.call('LTRIM', KEYS[1], ARGV[1], -1)
return found
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


@dataclass(frozen=True, slots=True)
class Heritage:
    """What a new leader takes over."""

    orders: dict[str, dict[str, Any]]  # of leaders before, to each member
    calls: list[EndedCall]  # that engines have not confirmed to have stopped
    steps: dict[str, dict[str, Any]]  # the last one on each backend


@dataclass(frozen=True, slots=True)
class Letter:
    """Something to be sent to a member."""

    to: str
    entry: dict[str, Any]
    term: int | None  # only if the sender still leads with it; None: in any case


class Store:
    def __init__(self, url: str, name: str, timeout_s: float, password: Callable[[], str] | None = None) -> None:
        """`name`: gateways that use the same one share their state. `password` is asked for each new connection, if the
        address has none."""
        self._url, self.address = url, without_password(url)
        self._client, self._in_cluster = _client(url, timeout_s, password), "+cluster://" in url
        prefix = f"hangup:{{{name}}}:"
        self._lead, self._orders, self._members = prefix + "lead", prefix + "orders", prefix + "members"
        self._calls, self._mail = prefix + "calls:", prefix + "mail:"
        self._stops, self._steps = prefix + "stops", prefix + "steps"
        self._block_s = min(timeout_s / 2, 1.0)  # how long the server may hold back an answer to a look for mail

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
        pipe.delete(self._calls + me, self._mail + me)
        await self._done(pipe.execute())
        await self._done(self._client.eval(_GIVE_UP, 1, self._lead, _owner(me, term)))

    # The leader

    async def take_lead(self, me: str, term: int, seen: Lead | None) -> Heritage | None:
        """Take the lead, unless it has changed since it was `seen`; return what leaders before have left. Their orders stay
        there, and nobody obeys them: this answer may be lost, and they say what a silent member may hold."""
        owner, beat = ("", "") if seen is None else (_owner(seen.member, seen.term), str(seen.beat))
        keys = [self._lead, self._orders, self._stops, self._steps]
        found = await self._done(self._client.eval(_TAKE, 4, *keys, owner, beat, _owner(me, term)))
        if found is None:
            return None
        orders, stops, steps = (
            {pairs[at].decode(): orjson.loads(pairs[at + 1]) for at in range(0, len(pairs), 2)} for pairs in found
        )
        return Heritage(orders, [EndedCall(*row) for row in stops.values()], steps)

    async def write_orders(self, lead: Lead, orders: Mapping[str, Mapping[str, object]], removed: Iterable[str]) -> bool:
        """Write orders to members, and remove those that are gone; return False if somebody else leads."""
        gone = list(removed)
        texts = [part for member, order in orders.items() for part in (member, orjson.dumps(order))]
        keys = [self._lead, self._orders, self._members, self._calls, self._mail]
        values = [_owner(lead.member, lead.term), str(lead.beat), str(len(gone)), *gone, *texts]
        return bool(await self._done(self._client.eval(_WRITE, 5, *keys, *values)))

    async def record(self, me: str, term: int, changes: RecordChanges) -> bool:
        """Write what the next leader must know; return False if somebody else leads."""
        closed = [f"{backend} {key}" for backend, key in changes.closed]
        rows = [part for call in changes.calls for part in ("0", f"{call.backend} {call.key}", orjson.dumps(call.row()))]
        rows += [part for backend, step in changes.steps.items() for part in ("1", backend, orjson.dumps(step))]
        values = [_owner(me, term), str(int(changes.whole)), str(len(closed)), *closed, *rows]
        return bool(await self._done(self._client.eval(_RECORD, 3, self._lead, self._stops, self._steps, *values)))

    async def calls_of(self, member: str) -> list[LeftCall]:
        """Return the calls that a member had in engines."""
        found = await self._done(self._client.hgetall(self._calls + member))
        return [LeftCall(*orjson.loads(row)) for id, row in found.items() if id.decode() != _MARK]

    # Mail

    async def post(self, me: str, term: int | None, letters: Iterable[Letter]) -> bool:
        """Send to members; return False, and send nothing, if it is sent as the leader and somebody else leads."""
        texts = [part for letter in letters for part in (letter.to, orjson.dumps(letter.entry))]
        owner = _owner(me, term) if term is not None else ""
        return bool(await self._done(self._client.eval(_POST, 2, self._lead, self._mail, owner, str(_MAIL_MAX), *texts)))

    async def receive(self, me: str) -> list[dict[str, Any]]:
        """Wait for mail, and return it; return nothing now and then."""
        key = self._mail + me
        first = await self._done(self._client.blpop([key], self._block_s))
        if first is None:
            return []
        more = await self._done(self._client.eval(_DRAIN, 1, key, str(_MAIL_READ)))
        return [orjson.loads(text) for text in (first[1], *more)]

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

"""hangup inside an application: the calls of its own handlers are tied to their clients.

`tether` is one call's life and the only place where it ends; `watch` notices the client's departure; `sources` and
`threads` make one kind of stream out of many; `frameworks` speak to Starlette, Litestar, aiohttp and plain ASGI. Nothing here
imports a server or a framework until a request of that framework is handed in.
"""

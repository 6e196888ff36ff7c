"""The hangup library: ties an application's engine calls to the clients that wait for them.

`tether` runs one call and is the only place that ends it; `watch` notices when the client disconnects; `sources` and `threads`
turn every kind of stream into one async iterator; `frameworks` adapts each framework, `engines` each engine. Nothing here
imports a server or a framework before the application passes in a request of that framework.
"""

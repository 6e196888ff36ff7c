"""The kinds of requests, as types: which clock each has, whether it queues, what happens at its first byte and at its end.

| kind | its way | module |
|---|---|---|
| `LiveCall` | a client's call: queues, is relayed, ends when its client hangs up | `live` |
| `JobItemCall` | the same for an item of a job, whose client is an object: it waits as long as it takes | `job_item` |
| `WebSocketCall` | queues for its handshake; then bytes pass both ways | `websocket` |
| `EngineQuestion` | past the queue, to any backend that is well | `question` |
| `ProviderRequest` | past the queue, to the provider that has the job; what passes is read on its way | `provider` |
| `LocalRequest` | answered here, by a task that asks the store of jobs | `local` |
"""

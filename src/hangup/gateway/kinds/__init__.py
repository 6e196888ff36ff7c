"""The kinds of requests, one class each. They differ in time limits, in queueing, and in what the first byte and the end do.

| kind | what it does | module |
|---|---|---|
| `LiveCall` | a client's call: queues, is relayed, ends when its client hangs up | `live` |
| `JobItemCall` | an item of a job, with an object in place of the client: may queue without a time limit | `job_item` |
| `WebSocketCall` | queues before its handshake, then passes bytes in both directions | `websocket` |
| `EngineQuestion` | skips the queue, and goes to any healthy backend | `question` |
| `ProviderRequest` | skips the queue, goes to the provider that runs the job, and reads the answer in passing | `provider` |
| `LocalRequest` | answered by the gateway, in a task that asks the job store | `local` |
"""

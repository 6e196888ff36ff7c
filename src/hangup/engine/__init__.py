"""The built-in inference engine: a real engine, small enough to read in an evening, that can cancel between two forwards.

Reading order: `request` (requests and events), `mailbox` and `scheduler` (who gets a slot; no model, no thread),
`engine` (schedule → run → postprocess), `drafters` (speculation), `model` (the interface of a model), `numpy_model`,
`torch_model`.

One rule governs the design: *the engine drains the mailbox before every forward of any model*, that is between two prefill
chunks, between two draft steps and between draft and verify. The engine removes a cancelled call, frees its blocks and
gives its slot to the next call before it runs the model again. `engine.ModelGate`, through which every forward passes,
asserts the rule.

In the same process, without HTTP
---------------------------------
An event loop talks to the engine's thread through two calls, neither of which blocks:

    runner = EngineRunner(EngineOptions(slots=8, spec="mtp"), loop)     # hangup.engine.runner
    runner.start()

    submission = runner.submit(request, on_event)   # raises Busy (queue full) or Unfit (request too long)
    submission.cancel()                             # any thread, any number of times, O(1)

The loop's thread calls `on_event` with the call's `Progress` events and, exactly once, with its `GenerationEnded`. The events
of one step, for all calls, cross over in a single `call_soon_threadsafe`. After `cancel()` returns, no `Progress` of a later
forward follows; the `GenerationEnded` with reason "cancelled" says that the slot and the blocks are free again.
`runner.status()` reports what each slot does (the reaper polls it), `runner.counters()` what the engine has computed;
`runner.stop()` ends every call and joins the thread. `request` is a `hangup.engine.request.SubmittedRequest`; its prompt is a
list of tokens, so encode text with `runner.model.tokenizer` first (`hangup.engine.serving.requests` parses OpenAI's request
bodies this way, `answers` builds the response bodies). `hangup.engine.serving.server.start(options)` serves the same engine
over HTTP.
"""

import os

# A step's matrix products are too small to split: a second BLAS thread gains nothing, takes a core from the event loop, and
# made steps fifty times as long on a busy machine. This takes effect only if numpy is not imported yet.
for _name in ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

"""The embedded engine: a real one, small enough to be read in an evening, which lets go between two forwards.

Reading order: `request` (what is asked, what comes back), `mailbox` and `scheduler` (who gets a slot; no model, no thread),
`engine` (schedule → run → postprocess), `drafters` (speculation), `model` (what a model must do), `numpy_model`,
`torch_model`.

The rule that all of it serves: *the mailbox is drained before every forward of any model*, so between two prefill chunks,
between two draft steps and between draft and verify. A cancelled call is gone, its blocks are back and its slot is
with the next call before the model is asked for anything more. `engine.Gate` asserts it at the one door to the models.

In the same process, without HTTP
---------------------------------
An event loop talks to the engine's thread through two calls, neither of which blocks:

    runner = Runner(Options(slots=8, spec="mtp"), loop)     # hangup.engine.runner
    runner.start()

    ticket = runner.submit(request, on_event)       # raises Busy (waiting list full) or Unfit (request too long)
    ticket.cancel()                                 # any thread, any number of times, O(1)

`on_event` is called in the loop's thread with the call's `Progress` events and, exactly once, with its `Ended`. All that one
step produced for all calls crosses over in a single `call_soon_threadsafe`. After `cancel()` returns no `Progress` of a
later forward follows; the `Ended` with reason "cancelled" says that slot and blocks are free again.
`runner.status()` tells what each slot does (the reaper's question), `runner.counters()` what was computed, `runner.stop()` ends
every call and joins the thread. `request` is made by `hangup.engine.request.Request`; prompts are tokens, so text goes
through `runner.model.tokenizer` first (`hangup.engine.serving.requests` does so for OpenAI's bodies, `answers` makes theirs).
`hangup.engine.serving.server.start(options)` is the same engine with HTTP around it.
"""

import os

# A step's products are too small to be shared: a second BLAS thread gains nothing, takes a core from the event loop, and
# made steps fifty times as long when the machine was busy. Heeded if numpy is not imported yet.
for _name in ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

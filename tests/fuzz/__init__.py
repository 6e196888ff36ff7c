"""A grammar-based fuzzer for the gateway: `make fuzz` runs it for an hour, CI for a minute.

    grammar    dice that generate requests, bodies, answers and configurations: mostly right, somewhere wrong
    parts      parsers in this process: they raise only their own errors, and judge every split of an input the same
    engine     an engine that answers by the number in the request: correctly, or as oddly as the number says
    clients    clients that send, mutilate, pipeline and disconnect; some of them check that they get their own answer
    run        the gateway as a process between the two, and the checks once it is idle

Every case is generated from one number, which its `X-Request-Id` carries; `--case NUMBER` repeats it.
"""

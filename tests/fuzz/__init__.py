"""A grammar-based fuzzer for the gateway: `make fuzz` for an hour, a minute of it in CI.

    grammar    dice, and what they make: requests, bodies, answers, configurations, mostly right, somewhere wrong
    parts      parsers within this process: no exception but their own, and the same verdict for every split of the input
    engine     an engine that answers by the number in the request: rightly, or as oddly as that number says
    clients    clients that send, mutilate, pipeline and leave, and among them some that check that they get what is theirs
    run        the gateway as a process between the two, and what must be true of it at rest

Every case is made from one number, which is in its `X-Request-Id`; `--case NUMBER` does it again.
"""

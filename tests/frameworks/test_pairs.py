"""Every pair of framework and server that docs/library.md calls supported: real hang-ups over real sockets.

`make test-frameworks` runs this; `make test` runs three of the pairs (`library/test_frameworks.py`).
"""

from __future__ import annotations

import os

import pytest

from frameworks.pairs import PAIRS, check

if os.environ.get("FRAMEWORK_TESTS") != "required":
    pytest.skip("needs the servers of `make test-frameworks`", allow_module_level=True)


@pytest.mark.parametrize(("framework", "server"), PAIRS, ids=map("-".join, PAIRS))
def test_a_hang_up_stops_the_engine(framework: str, server: str) -> None:
    check(framework, server)

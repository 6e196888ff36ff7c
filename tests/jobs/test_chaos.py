"""A short run of `make chaos`: two gateways on one store, load and faults; promises are kept once, and nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.__main__ import run

SECONDS = 8.0


@pytest.mark.parametrize("seed", [1])
def test_a_seed(seed: int, tmp_path: Path) -> None:
    assert asyncio.run(run(tmp_path, seed, SECONDS)) == []

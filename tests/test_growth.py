"""What a call costs does not depend on the number of backends, tenants and models.

`make bench ARGS=growth` has more sizes, and times.
"""

from __future__ import annotations

import asyncio

import pytest
from bench.growth import Many, Size, count

MORE = 1.05
PAIRS = {
    "one backend and several": (Size(), Size(backends=10)),
    "backends": (Size(backends=10), Size(backends=300)),
    "backends, each model at half of them": (
        Size(backends=30, models=2, model_at_half=True),
        Size(backends=300, models=2, model_at_half=True),
    ),
    "tenants": (Size(tenants=2), Size(tenants=300)),
    "more tenants than the metrics can name": (Size(tenants=2), Size(tenants=1100)),
    "models": (Size(models=2), Size(models=1000)),
}


async def cost(size: Size) -> float:
    many = Many(size)
    many.make(max(1500, 6 * size.tenants))  # a head is remembered when it comes for the second time
    counted = count(many, 300)
    await many.close()
    return counted


@pytest.mark.parametrize("case", PAIRS)
def test_more_of_them_do_not_make_a_call_dearer(case: str) -> None:
    few, more = (asyncio.run(cost(size)) for size in PAIRS[case])
    assert more <= few * MORE, f"{few:.0f} function calls with few, {more:.0f} with many"


def test_what_a_call_touches_of_its_backend_and_its_tenant_has_no_dictionary() -> None:
    """Such an object would be in two places of the memory, and with many of them neither is in the processor's caches."""

    async def touched() -> list[object]:
        many = Many(Size(tenants=2))
        many.make(10)
        (backend,) = many.gateway.backends.by_name.values()
        tenant, *_ = many.gateway.placement.admission.tenants.values()
        series, *_ = many.gateway.accounting.ledger.series.values()
        load, lengths = backend.load, tenant.lengths(0)
        first, whole = tenant.patience.of("bench", False)
        of_backend = [backend, backend.pool, backend.slots, load, load.health, load.limiter, load.time, load.estimates]
        await many.close()
        return [*of_backend, load.estimates.first_token, tenant, tenant.patience, first, whole, lengths, series]

    assert [type(part) for part in asyncio.run(touched()) if hasattr(part, "__dict__")] == []

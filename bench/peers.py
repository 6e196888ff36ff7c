"""Placeholder until written below."""

from __future__ import annotations


async def run() -> dict[str, float]:
    return {}

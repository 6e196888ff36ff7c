"""Sources that several tests of the linter lint."""

from __future__ import annotations

ROUTER = """
from fastapi import APIRouter
from openai import AsyncOpenAI

router = APIRouter()
client = AsyncOpenAI()

@router.post("/ask")
async def ask(text: str):
    return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
"""  # its handler leaks, if an application includes it

"""Admission inside the process: one call runs, one waits, and nobody waits for longer than a second.

hangup engine --port 9000 --slots 8
ENGINE=http://127.0.0.1:9000 uvicorn gated:app --app-dir examples
"""

import os

import openai
from fastapi import Depends, FastAPI, Request

import hangup

ENGINE = os.environ.get("ENGINE", "http://127.0.0.1:9000") + "/v1"
client = openai.AsyncOpenAI(base_url=ENGINE, api_key="none", max_retries=0)
gate = hangup.Gate(slots=1, queue=1, max_wait_s=1)
app = FastAPI()


@app.post("/stream", dependencies=[Depends(gate)])
async def stream(request: Request, prompt: str):
    messages = [{"role": "user", "content": prompt}]
    call = client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=1024)
    return hangup.stream(request, call, total_s=60)


@app.get("/gate")
async def show():
    return {"running": gate.running, "waiting": gate.waiting, "refused": gate.refused}

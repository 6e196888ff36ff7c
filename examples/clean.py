"""The same handlers, tied to their clients.

hangup engine --port 9000 --slots 8
ENGINE=http://127.0.0.1:9000 uvicorn clean:app --app-dir examples
"""

import os

import openai
from fastapi import FastAPI, Request

import hangup

ENGINE = os.environ.get("ENGINE", "http://127.0.0.1:9000") + "/v1"
client = openai.AsyncOpenAI(base_url=ENGINE, api_key="none", max_retries=0, http_client=hangup.httpx2.AsyncClient(timeout=60))
blocking_client = openai.OpenAI(base_url=ENGINE, api_key="none", max_retries=0)
app = FastAPI()


@app.post("/answer")
async def answer(request: Request, prompt: str):
    messages = [{"role": "user", "content": prompt}]
    call = client.chat.completions.create(model="m", messages=messages, max_tokens=1024)
    result = await hangup.run(request, call, total_s=120)
    return {"text": result.choices[0].message.content}


@app.post("/stream")
async def stream(request: Request, prompt: str):
    messages = [{"role": "user", "content": prompt}]
    call = client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=1024)
    return hangup.stream(request, call, first_token_s=30, gap_s=30)


@app.post("/blocking")
async def blocking(request: Request, prompt: str):
    messages = [{"role": "user", "content": prompt}]

    def work(token: hangup.CancelToken) -> str:
        parts = []
        with blocking_client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=1024) as chunks:
            for chunk in chunks:
                if token.cancelled:
                    break
                parts.append(chunk.choices[0].delta.content or "")
        return "".join(parts)

    return {"text": await hangup.run(request, work, total_s=120)}


@app.post("/background")
@hangup.tethered(total_s=120)
async def background(prompt: str):
    messages = [{"role": "user", "content": prompt}]
    result = await client.chat.completions.create(model="m", messages=messages, max_tokens=1024)
    return {"text": result.choices[0].message.content}

"""Typical handlers. Each keeps the engine working after its client has left; `hangup lint examples/leaking.py` reports them.

hangup engine --port 9000 --slots 8
ENGINE=http://127.0.0.1:9000 uvicorn leaking:app --app-dir examples
"""

import os

import openai
from fastapi import BackgroundTasks, FastAPI
from fastapi.responses import StreamingResponse

ENGINE = os.environ.get("ENGINE", "http://127.0.0.1:9000") + "/v1"
client = openai.AsyncOpenAI(base_url=ENGINE, api_key="none", max_retries=0)
blocking_client = openai.OpenAI(base_url=ENGINE, api_key="none", max_retries=0)
app = FastAPI()


@app.post("/answer")
async def answer(prompt: str):
    """Nobody watches the client: the engine computes the whole answer, and nobody receives it."""
    messages = [{"role": "user", "content": prompt}]
    result = await client.chat.completions.create(model="m", messages=messages)
    return {"text": result.choices[0].message.content}


@app.post("/stream")
async def stream(prompt: str):
    """Waits for the first token before there is a response, so nobody notices when the client leaves."""
    messages = [{"role": "user", "content": prompt}]
    chunks = await client.chat.completions.create(model="m", messages=messages, stream=True)
    first = await anext(chunks)

    async def text():
        yield first.choices[0].delta.content or ""
        async for chunk in chunks:
            yield chunk.choices[0].delta.content or ""

    return StreamingResponse(text(), media_type="text/plain")


@app.post("/blocking")
def blocking(prompt: str):
    """Runs in a thread: nothing can cancel it."""
    messages = [{"role": "user", "content": prompt}]
    result = blocking_client.chat.completions.create(model="m", messages=messages)
    return {"text": result.choices[0].message.content}


async def write(prompt: str):
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])


@app.post("/background")
async def background(prompt: str, tasks: BackgroundTasks):
    """Runs after the response, even if the client is gone."""
    tasks.add_task(write, prompt)
    return {"text": "later"}

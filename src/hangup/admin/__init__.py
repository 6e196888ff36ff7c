"""The admin port: health, readiness, metrics. Not hot, so it runs on Starlette and uvicorn."""

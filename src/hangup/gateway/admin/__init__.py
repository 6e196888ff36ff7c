"""The admin port: health, metrics, the API of live calls, the dashboard. It is not on the hot path, so it uses Starlette and
uvicorn."""

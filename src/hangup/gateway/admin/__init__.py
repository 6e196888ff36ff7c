"""The admin port: health, metrics, the API of live calls, the dashboard. Not hot, so it runs on Starlette and uvicorn."""

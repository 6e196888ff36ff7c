"""Runs llama.cpp's own HTTP server from the wheel `xllamacpp`, in its environment: serve_gguf.py MODEL.gguf PORT [SLOTS]."""

from __future__ import annotations

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"tiny"}
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = int(sys.argv[3]) if len(sys.argv) > 3 else 4
params.n_ctx = 8192 * params.n_parallel
params.endpoint_slots = params.endpoint_metrics = True
params.kv_unified = False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
signal.pause()

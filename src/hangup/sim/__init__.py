"""A discrete-event simulator in virtual time around the real admission: what is simulated is what is shipped.

`world.py` joins clients (`clients.py`), gateways (`policies.py`) and engines (`engine.py`) by one clock; `load.py` and
`traces.py` say who comes when and asks for what, `jobs.py` brings work that nobody waits for; `tally.py` counts; `study.py`
runs loads and policies side by side.
"""

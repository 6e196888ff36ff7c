"""A discrete-event simulator in virtual time around the real admission code: it simulates exactly what ships.

`world.py` connects clients (`clients.py`), gateways (`policies.py`) and engines (`engine.py`) through one clock. `load.py` and
`traces.py` define when calls arrive and what they ask for; `jobs.py` adds background jobs; `tally.py` counts; `study.py`
compares loads and policies.
"""

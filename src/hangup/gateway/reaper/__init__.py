"""The reaper: after each call that ended early it asks the engine whether the work is gone, and acts when it is not.

One loop per backend (`watch.py`), beside the data path: one question at a time, whatever the number of calls. The decisions are
`core/reaper`'s; here they are carried out: aborts, restarts (`restart.py`, `process.py`) and the canary (`canary.py`).
"""

from hangup.gateway.reaper.reaper import BackendView, Reaper, Zombie
from hangup.gateway.reaper.watch import BackendWatch, ReaperStats, WatchHost

__all__ = ["BackendView", "BackendWatch", "Reaper", "ReaperStats", "WatchHost", "Zombie"]

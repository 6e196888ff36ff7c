"""The reaper: after each call that ended early it checks that the engine has stopped the work, and acts if it has not.

One loop per backend (`watch.py`), outside the data path, sends one status query at a time, whatever the number of calls.
`core/reaper` decides; this package carries out: aborts, restarts (`restart.py`, `process.py`) and the canary (`canary.py`).
"""

from hangup.gateway.reaper.peers import Answers, Peers
from hangup.gateway.reaper.process import EngineOwner, Spawned
from hangup.gateway.reaper.reaper import BackendView, Reaper, Zombie
from hangup.gateway.reaper.stats import ReaperStats
from hangup.gateway.reaper.trouble import WatchHost
from hangup.gateway.reaper.watch import BackendWatch

__all__ = [
    "Answers",
    "BackendView",
    "BackendWatch",
    "EngineOwner",
    "Peers",
    "Reaper",
    "ReaperStats",
    "Spawned",
    "WatchHost",
    "Zombie",
]

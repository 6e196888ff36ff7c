"""How often members and the hub speak, and when a member counts as silent or dead. All in seconds."""

from __future__ import annotations

# A member reports
REPORT_S = 0.1  # at this interval while nobody waits for a place,
HURRY_S = 0.02  # at this one while somebody may,
SOON_S = 0.002  # and so soon after a call had to wait for what may be unused elsewhere: several may, so they go together,
SOON_AGAIN_S = 0.01  # at most this often

# The hub
LOOK_S = 0.25  # looks this often who is silent:
SILENT_S = 1.0  # who said nothing for so long
HOSTS_LOOK_S, HOSTS_SILENT_S = 0.1, 0.5  # the same on several hosts, where the gateway is then asked itself whether it lives
DEAD_HOLD_S = 1.0  # engines may take this long to notice that a member has died or left

# A gateway without the store, on several hosts
HOSTS_KEEP_S = 5.0  # after this, it uses an equal part of everything instead of what it holds
HOSTS_SET_ASIDE_S = 2.0  # after this, the leader sets that part aside for a gateway that lives and is cut off from the store

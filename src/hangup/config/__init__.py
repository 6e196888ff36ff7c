"""One typed configuration: every setting has a name, a default and a line of documentation, all in `schema`.

`load` puts it together from flags, environment and file; it is not imported here, so that what only needs the settings
(the library, among others) does not pay for reading them.
"""

from hangup.config.limits import (
    AdmissionLimits,
    BackendLimits,
    CallLimits,
    ClientLimits,
    EngineLimits,
    HealthLimits,
    JobLimits,
    LimitSettings,
    ProviderLimits,
    ReaperLimits,
    ReportLimits,
    RequestLimits,
    TrafficLimits,
)
from hangup.config.schema import AliasSettings, BackendSettings, RouteSettings, Settings, TenantSettings

__all__ = [
    "AdmissionLimits",
    "AliasSettings",
    "BackendLimits",
    "BackendSettings",
    "CallLimits",
    "ClientLimits",
    "EngineLimits",
    "HealthLimits",
    "JobLimits",
    "LimitSettings",
    "ProviderLimits",
    "ReaperLimits",
    "ReportLimits",
    "RequestLimits",
    "RouteSettings",
    "Settings",
    "TenantSettings",
    "TrafficLimits",
]

"""The typed configuration: every setting has a name, a default and a line of documentation, all in `schema` and `limits`.

`load` builds it from flags, environment and file. It is not imported here, so that code that needs only the settings (the
library, among others) does not pay for reading them.
"""

from hangup.config.limits import (
    AdmissionLimits,
    BackendLimits,
    CallLimits,
    ClientLimits,
    DiscoveryLimits,
    EngineLimits,
    FailoverLimits,
    HealthLimits,
    JobLimits,
    JobServiceLimits,
    LimitSettings,
    ProviderLimits,
    ReaperLimits,
    ReportLimits,
    RequestLimits,
    ServingLimits,
    TrafficLimits,
)
from hangup.config.schema import AliasSettings, BackendSettings, DiscoveredBackend, RouteSettings, Settings, TenantSettings

__all__ = [
    "AdmissionLimits",
    "AliasSettings",
    "BackendLimits",
    "BackendSettings",
    "CallLimits",
    "ClientLimits",
    "DiscoveredBackend",
    "DiscoveryLimits",
    "EngineLimits",
    "FailoverLimits",
    "HealthLimits",
    "JobLimits",
    "JobServiceLimits",
    "LimitSettings",
    "ProviderLimits",
    "ReaperLimits",
    "ReportLimits",
    "RequestLimits",
    "RouteSettings",
    "ServingLimits",
    "Settings",
    "TenantSettings",
    "TrafficLimits",
]

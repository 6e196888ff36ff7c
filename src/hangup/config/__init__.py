"""One typed configuration: every setting has a name, a default and a line of documentation, all in `schema`."""

from hangup.config.load import Configuration, load
from hangup.config.schema import BackendSettings, Limits, RouteSettings, Settings, TenantSettings

__all__ = ["BackendSettings", "Configuration", "Limits", "RouteSettings", "Settings", "TenantSettings", "load"]

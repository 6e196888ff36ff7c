"""The gateway's side towards engines: connection pools, backends and their health, and one small adapter per kind of engine."""

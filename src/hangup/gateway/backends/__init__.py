"""The engine's side: connections kept alive, backends and their health, and one small adapter per kind of engine."""

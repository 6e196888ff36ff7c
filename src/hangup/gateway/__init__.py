"""Puts the parts together: a call's way from its client to an engine and back, and the process around it."""

"""What a reference in a file stands for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    kind: str  # function, class, instance, module, made (by code outside of the project), or missing (its import fails)
    path: str = ""  # of the file that defines it, or that imports what made it
    number: int = 0
    name: str = ""  # of the class, or of what made it: "openai.AsyncOpenAI"
    chosen: bool = False  # one of several that a dictionary holds

"""What the user of `hangup top` has chosen, and what a key does to it. No terminal, no gateway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hangup.cli.top_parts.views import VIEWS, View

_NAMES = tuple(VIEWS)
# The names of keys, by what terminals send for them.
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b[C": "right",
    "\x1bOC": "right",
    "\x1b[D": "left",
    "\x1bOD": "left",
    "\x1b[Z": "left",
    "\t": "right",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "escape",
    "\x03": "q",
}
_KEY = re.compile(r"\x1b\[<\d+;\d+;\d+[Mm]|\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.S)
_MOUSE = re.compile(r"\x1b\[<(\d+);(\d+);(\d+)M")


@dataclass(frozen=True, slots=True)
class TopState:
    view: str = "calls"
    sorts: dict[str, str] = field(default_factory=dict)  # the sort key of each view that has another than its first
    filter: str = ""
    selected: str = ""  # the key of the selected row
    typing: bool = False  # the user is typing the filter
    confirming: tuple[str, str] = ("", "")  # the action that awaits a y, and the row it is for
    action: tuple[str, str] = ("", "")  # the action to do now, and its row
    page: str = ""  # what covers the table: help, trace, job
    scroll: int = 0  # of that page
    quit: bool = False

    @property
    def shown(self) -> View:
        return VIEWS[self.view]

    @property
    def sort(self) -> str:
        return self.sorts.get(self.view) or self.shown.sorts[0]


def read_keys(data: bytes) -> list[str]:
    """Return the names of the keys and clicks in what the terminal sent."""
    return [_SEQUENCES.get(found, found) for found in _KEY.findall(data.decode("utf-8", "ignore"))]


def press(state: TopState, key: str, keys: Sequence[str], rows_on_screen: int = 10) -> TopState:
    """Return the state after a key; `keys` are the rows of the view, in order."""
    if state.typing:
        return _type(state, key)
    if state.confirming[0]:
        return replace(state, confirming=("", ""), action=state.confirming if key == "y" else ("", ""))
    if state.page:
        return _turn(state, key, rows_on_screen)
    if key in ("q", "escape"):
        return replace(state, filter="") if key == "escape" else replace(state, quit=True)
    if key in _MOVES or key in ("page up", "page down"):
        return _move(state, key, keys, rows_on_screen)
    if key in ("left", "right") or (key.isdigit() and 0 < int(key) <= len(_NAMES)):
        at = int(key) - 1 if key.isdigit() else _NAMES.index(state.view) + (1 if key == "right" else -1)
        return show(state, _NAMES[at % len(_NAMES)])
    return _command(state, key, keys)


def show(state: TopState, view: str) -> TopState:
    """Go to another view."""
    return replace(state, view=view, selected="", filter="") if view != state.view else state


def _command(state: TopState, key: str, keys: Sequence[str]) -> TopState:
    view, chosen = state.shown, _selected(state, keys)
    match key:
        case "?" | "h":
            return replace(state, page="help", scroll=0)
        case "/":
            return replace(state, typing=True, filter="")
        case "s" | "S":
            at = view.sorts.index(state.sort.removeprefix("-")) + (1 if key == "s" else -1)
            return replace(state, sorts={**state.sorts, view.name: view.sorts[at % len(view.sorts)]})
        case "r":
            turned = state.sort[1:] if state.sort.startswith("-") else f"-{state.sort}"
            return replace(state, sorts={**state.sorts, view.name: turned})
        case "enter" if view.opens and chosen:
            return replace(state, action=(view.opens, chosen))
        case "x" if view.act and chosen:
            return replace(state, confirming=(view.act, chosen), selected=chosen)
    return state


_MOVES = {"j": 1, "down": 1, "k": -1, "up": -1, "home": -(10**6), "g": -(10**6), "end": 10**6, "G": 10**6}


def _move(state: TopState, key: str, keys: Sequence[str], rows_on_screen: int) -> TopState:
    if not keys:
        return state
    by = _MOVES.get(key) or (rows_on_screen if key == "page down" else -rows_on_screen)
    at = keys.index(state.selected) if state.selected in keys else 0
    return replace(state, selected=keys[min(max(at + by, 0), len(keys) - 1)])


def _selected(state: TopState, keys: Sequence[str]) -> str:
    """Return the selected row; the first one if the selected one is gone."""
    return state.selected if state.selected in keys else keys[0] if keys else ""


def _type(state: TopState, key: str) -> TopState:
    if key == "enter":
        return replace(state, typing=False)
    if key == "escape":
        return replace(state, typing=False, filter="")
    if key == "backspace":
        return replace(state, filter=state.filter[:-1])
    return replace(state, filter=state.filter + key) if len(key) == 1 and key.isprintable() else state


def _turn(state: TopState, key: str, rows_on_screen: int) -> TopState:
    """Scroll the page that covers the table, or leave it."""
    if key in ("q", "escape", "enter", "backspace", "?"):
        return replace(state, page="", scroll=0)
    by = _MOVES.get(key, {"page down": rows_on_screen, "page up": -rows_on_screen}.get(key, 0))
    return replace(state, scroll=min(max(state.scroll + by, 0), 10**6))


def click(
    state: TopState, key: str, rows: Sequence[tuple[int, str]], tabs: Sequence[tuple[int, int, str]], tab_line: int
) -> TopState:
    """Return the state after a click or a turn of the wheel. `rows`: the lines of the screen that show rows; `tabs`: where the
    views' names are in the line `tab_line`."""
    found = _MOUSE.fullmatch(key)
    if found is None or state.typing or state.confirming[0]:
        return state
    button, column, line = (int(part) for part in found.groups())
    if button in (64, 65):
        return press(state, "up" if button == 64 else "down", [row for _, row in rows])
    if button != 0 or state.page:
        return state
    if line - 1 == tab_line:
        return next((show(state, view) for start, end, view in tabs if start < column <= end), state)
    hit = next((row for at, row in rows if at == line - 1), None)
    if hit is None:
        return state
    return press(state, "enter", [hit]) if hit == state.selected else replace(state, selected=hit)

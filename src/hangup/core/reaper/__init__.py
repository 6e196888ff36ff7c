"""Whether an engine has let go of work that nobody waits for, and what follows if it has not. No I/O.

`Status` is what an engine says of itself, `Book` holds the calls that ended while it was at work on them and judges by
that, and `Ladder` decides what is done about those it has not let go of.
"""

from hangup.core.reaper.book import Book, Fate, Leftover
from hangup.core.reaper.ladder import Ladder, Rung, Step, Terms
from hangup.core.reaper.orphans import Means, Orphans
from hangup.core.reaper.status import Slot, Status
from hangup.core.reaper.stillness import Stillness, Waiting, reading_s

__all__ = [
    "Book",
    "Fate",
    "Ladder",
    "Leftover",
    "Means",
    "Orphans",
    "Rung",
    "Slot",
    "Status",
    "Step",
    "Stillness",
    "Terms",
    "Waiting",
    "reading_s",
]

"""`python -m chaos --seed 7 --minutes 4`: exits with 0 if every check passed."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from chaos import checks
from chaos.damage import damaged
from chaos.faults import HARMLESS, Faults
from chaos.load import Load
from chaos.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description="Faults and load from a seed, on real processes.")
    parser.add_argument("--seed", type=int, default=None, help="the same seed makes the same faults (default: a new one)")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long there are faults (default: 1)")
    parser.add_argument("--actors", default="", metavar="NAMES", help="only this load and these faults, with commas between")
    parser.add_argument("--without", default="", metavar="NAMES", help="all but these")
    parser.add_argument("--keep", action="store_true", help="keeps the files and prints where they are")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    folder = Path(tempfile.mkdtemp(prefix="hangup-chaos-"))
    try:
        wrong = asyncio.run(run(folder, seed, arguments.minutes * 60, arguments.actors, arguments.without))
    finally:
        if arguments.keep:
            print(f"files: {folder}")
        else:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    return 1 if wrong else 0


async def run(folder: Path, seed: int, seconds: float, only: str = "", without: str = "") -> list[str]:
    began = time.monotonic()
    print(f"seed {seed}, {seconds:g} s of faults", flush=True)
    world = World(folder, seed)
    load, faults = Load(world, seed), Faults(world, seed)
    chosen_load = _chosen(list(load.actors()), only, without)
    chosen_faults = _chosen([name for name in faults.actors() if name != "clock" or world.clock.works], only, without)
    if not only and seed % 3 == 0:  # for every third seed, live calls must not notice anything
        chosen_faults = [name for name in chosen_faults if name in HARMLESS]
    try:
        clients = [asyncio.create_task(load.actors()[name]()) for name in chosen_load]
        shown = asyncio.create_task(_progress(load, faults, began))
        if chosen_faults:
            await faults.go_on(chosen_faults, began + seconds)
        else:
            await asyncio.sleep(seconds)
        load.book.stopping = True
        await asyncio.to_thread(world.heal)
        await asyncio.gather(*clients)
        if set(chosen_faults) <= set(HARMLESS):
            load.book.wrong += checks.harmed(load.book)
        wrong = [*load.book.wrong, *await checks.all_promises(world, load.book, 120), *await checks.rest(world)]
        shown.cancel()
        if "damage" in _chosen(["damage"], only, without):
            how, more = await damaged(world, seed)
            faults.done[f"store damaged ({how})"] += 1
            wrong += more
    finally:
        await asyncio.to_thread(world.close)
    wrong += checks.logs(world) + checks.cuts(load.book) + checks.outcomes(world, load.book)
    wrong += checks.bills(world, load.book, killed=faults.killed)
    _report(load, faults, wrong, seed, time.monotonic() - began)
    return wrong


def _chosen(names: list[str], only: str, without: str) -> list[str]:
    listed, left_out = ({name for name in text.split(",") if name} for text in (only, without))
    return [name for name in names if (name in listed or not listed) and name not in left_out]


async def _progress(load: Load, faults: Faults, began: float) -> None:
    while True:
        await asyncio.sleep(10)
        summary = f"{sum(load.book.outcomes.values())} calls, {len(load.book.promises)} jobs, {faults.done.total()} faults"
        print(f"{time.monotonic() - began:5.0f} s: {summary}, {len(load.book.wrong)} wrong", flush=True)


def _report(load: Load, faults: Faults, wrong: list[str], seed: int, took: float) -> None:
    if wrong:
        print("what happened:", *faults.story, sep="\n  ")
        print("what is wrong:", *wrong[:50], sep="\n  ")
    print("outcomes:", ", ".join(f"{count} {name}" for name, count in sorted(load.book.outcomes.items())))
    print("faults:", ", ".join(f"{count} {name}" for name, count in sorted(faults.done.items())))
    items = sum(promise.items for promise in load.book.promises.values())
    calls = sum(load.book.outcomes.values())
    summary = f"{len(load.book.promises)} jobs of {items} items, {calls} calls, {faults.done.total()} faults"
    print(f"seed {seed}: {summary} in {took:.0f} s: {f'{len(wrong)} WRONG' if wrong else 'all well'}", flush=True)


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)
    sys.exit(main())

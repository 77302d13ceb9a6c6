"""A progress line a stage: done of asked, hits, failures, cost, rate, time left. Quiet off a terminal."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from judgebench.tally import Tally

log = logging.getLogger("judgebench")

EVERY_S = 0.25


@contextmanager
def watch(name: str, tally: Tally) -> Iterator[None]:
    """Show a tally on stderr while the block runs, from a thread of its own."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task(name, total=0, told="")

        def follow() -> None:
            while not over.wait(EVERY_S):
                progress.update(task, total=tally.asked, completed=tally.done, told=told(tally))
            progress.update(task, total=tally.asked, completed=tally.done, told=told(tally))

        thread = threading.Thread(target=follow, name=f"progress-{name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def say(text: str) -> None:
    """Tell the user on stdout; the log file keeps it too."""
    print(text, flush=True)
    log.debug("%s", text)


def told(tally: Tally) -> str:
    """The counts in words, what is zero left out: `1 asked, 2 stored, $0.5000`."""
    parts = [f"{tally.origins['paid']} asked", f"{tally.hits} stored"]
    parts += [
        f"{tally.origins[name]} {name}" for name in ("shipped", "replayed", "imported") if tally.origins[name]
    ]
    failed, retried = sum(tally.failures.values()), sum(tally.retries.values())
    if failed:
        parts.append(f"{failed} failed")
    if retried:
        parts.append(f"{retried} retried")
    if tally.cost_usd:
        parts.append(f"${tally.cost_usd:.4f}")
    if tally.waiting:
        parts.append(tally.waiting)
    return ", ".join(parts)

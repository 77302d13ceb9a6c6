"""`python -m tests.bench [misses hits mixed stores peers full]`: run the benches and print one table.

Nothing fails for being slow: machines differ, and so do their other tenants. Ratios are of things measured
in turn in the same run.
"""

from __future__ import annotations

import os
import sys
import time

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench import full, hits, misses, mixed, peers, stores

BENCHES = {
    "misses": misses.lines,
    "hits": hits.lines,
    "mixed": mixed.lines,
    "stores": stores.lines,
    "peers": peers.lines,
    "full": full.lines,
}


def main(names: list[str]) -> None:
    unknown = set(names) - BENCHES.keys()
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: no such bench. Choices: {', '.join(BENCHES)}.")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("bench", "what"):
        table.add_column(column, overflow="fold")
    for column in ("measured", "target"):
        table.add_column(column, justify="right", no_wrap=True)
    began = time.perf_counter()
    for name in names or BENCHES:
        print(f"{name} …", file=sys.stderr, flush=True)
        for line in BENCHES[name]():
            table.add_row(*line)
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(table)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = ".".join(map(str, sys.version_info[:3]))
    console.print(
        "* from the end of the preflight to the last answer; the last commit is not in it.\n"
        f"{os.cpu_count()} cores, {memory:.0f} GB, Python {python}, load {os.getloadavg()[0]:.1f}; "
        f"{time.perf_counter() - began:.0f} s in all.",
        soft_wrap=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])

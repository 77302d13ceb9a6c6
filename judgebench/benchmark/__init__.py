"""Benchmarks: a named set of instructions, with what else is shipped for them.

A conf names files and columns; `load` reads them, fixes the ids on the whole set first, checks, and
only then selects. Which model answers, and how answers are judged, is not known here.
"""

from judgebench.benchmark.benchmark import Benchmark, Loaded, files
from judgebench.benchmark.items import Instruction, Truth
from judgebench.benchmark.table import Table

__all__ = ["Benchmark", "Instruction", "Loaded", "Table", "Truth", "files"]

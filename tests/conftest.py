from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public evaluation data: $JUDGEBENCH_DATA, else `shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("JUDGEBENCH_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no evaluation data at {folder}: set JUDGEBENCH_DATA")
    return folder

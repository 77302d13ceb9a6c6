"""The notebook runs from top to bottom, in a notebook's own loop."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "quickstart.ipynb"


@pytest.mark.local
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_quickstart_runs(tmp_path, monkeypatch):
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("JUDGEBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("JUDGEBENCH_DATA", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit the notebook without outputs"
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("win_rate" in str(output.get("data", {}).get("text/plain")) for output in shown)
    assert list(tmp_path.glob("runs/*/leaderboard.parquet"))

"""Run a notebook of docs/notebooks and write its pictures as files, in the order in which it shows them.

python tools/run_notebook.py docs/notebooks/accuracy_and_timeline.ipynb docs/pictures
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def run(notebook: Path) -> list[str]:
    """SVG of every picture that the notebook shows; the notebook itself stays without outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    read = nbformat.read(notebook, as_version=4)
    NotebookClient(
        read, timeout=600, kernel_name="python3", resources={"metadata": {"path": notebook.parent}}
    ).execute()
    outputs = [output for cell in read.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.get("data", {})]


def main() -> None:
    """Run the notebook, write the pictures."""
    notebook, folder = map(Path, sys.argv[1:])
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(run(notebook), 1):
        (folder / f"{notebook.stem}-{number}.svg").write_text(picture)


if __name__ == "__main__":
    main()

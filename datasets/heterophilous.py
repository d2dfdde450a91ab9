"""Read a heterophilous graph, whose neighbours are mostly of other classes: one of Platonov et al. (ICLR 2023).

    git clone https://github.com/yandex-research/heterophilous-graphs
    python datasets/heterophilous.py OUT heterophilous-graphs/data/minesweeper.npz

The files are those of `A Critical Look at the Evaluation of GNNs under Heterophily: Are We Really Making Progress?`
(arXiv 2302.11640; MIT): minesweeper, tolokers, roman_empire, amazon_ratings, questions. Each has ten splits, of which
one is taken. Of two classes, the paper's score is ROC AUC.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np


def load(file: Path, split: int = 0) -> dict[str, Any]:
    """Reads the graph as arrays for `diskgnn.convert(..., reverse=True)`.

    Returns:
        features float32 [N, D]; edges int64 [2, E], each undirected edge once; labels int64 [N]; train, valid, test
        int64, ascending.
    """
    with np.load(file) as arrays:
        masks = {name: arrays[f"{theirs}_masks"][split]
                 for name, theirs in (("train", "train"), ("valid", "val"), ("test", "test"))}  # fmt: skip
        return {
            "features": arrays["node_features"].astype(np.float32),
            "edges": arrays["edges"].T.astype(np.int64),
            "labels": arrays["node_labels"].astype(np.int64),
            **{name: np.flatnonzero(mask) for name, mask in masks.items()},
        }


def main(command_line: list[str] | None = None) -> None:
    """Writes the graph directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="graph directory to write")
    parser.add_argument("file", type=Path, help="minesweeper.npz or another one")
    parser.add_argument("--split", type=int, default=0, help="which of the ten: %(default)s")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    options = parser.parse_args(command_line)

    import diskgnn

    diskgnn.convert(options.out, **load(options.file, options.split), reverse=True, overwrite=options.overwrite)


if __name__ == "__main__":
    main()

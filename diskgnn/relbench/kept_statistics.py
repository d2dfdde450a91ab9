"""Statistics of columns as torch_frame has them, in a file beside the graph that was made with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_frame.data.stats import StatType

from diskgnn.errors import ArtifactError

Statistics = dict[str, dict[str, dict[StatType, Any]]]  # by table and column


def write_statistics(
    path: Path, statistics: Statistics, names: dict[str, list[str]]
) -> tuple[Statistics, dict[str, list[str]]]:
    """Writes statistics, and the `names` of columns by table in their order, as one file that is whole or not there.

    Returns:
        What `read_statistics` finds: values of categories that are no text, numbers or truth values are text.
    """
    columns = {
        table: {column: {each.name: _plain(value) for each, value in found.items()} for column, found in of.items()}
        for table, of in statistics.items()
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps({"statistics": columns, "names": names}, default=str)
    unfinished.write_text(text)
    unfinished.replace(path)
    return _statistics(text)


def read_statistics(path: Path) -> tuple[Statistics, dict[str, list[str]]] | None:
    """Returns what `write_statistics` wrote; None if it is not there.

    Raises:
        ArtifactError: the file holds something else.
    """
    try:
        return _statistics(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} holds no statistics of columns ({error}): remove it, and it is made again"
        ) from error


def _statistics(text: str) -> tuple[Statistics, dict[str, list[str]]]:
    found = json.loads(text)
    statistics = {
        table: {
            column: {StatType[name]: _value(value) for name, value in each.items()} for column, each in columns.items()
        }
        for table, columns in found["statistics"].items()
    }
    return statistics, found["names"]


def _plain(value: Any) -> Any:
    """Returns a value that JSON knows: numbers, text, lists, and what says of itself that it is a tensor or a tuple."""
    if isinstance(value, torch.Tensor):
        return {"tensor": value.tolist()}
    if isinstance(value, tuple):
        return {"tuple": [_plain(each) for each in value]}
    if isinstance(value, np.ndarray | list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return torch.tensor(plain["tensor"]) if "tensor" in plain else tuple(map(_value, plain["tuple"]))
    return list(map(_value, plain)) if isinstance(plain, list) else plain

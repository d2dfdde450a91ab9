"""docs/FORMAT.md lists the columns of samples and of headers that there can be, with their types, and no others."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from diskgnn.formats.minibatch_columns import LABEL_DTYPES, MinibatchLayout, RowSetLayout

FORMAT = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text()
SAMPLES = MinibatchLayout(2, (9, 9), ((0, 1), (1, 0)), (0, 1), (None, None), (None, None))
HEADERS = replace(SAMPLES, row_sets=(RowSetLayout(0, is_edges=False, has_spread=True),), has_edge_ids=True)
IDS, YES_OR_NO = ("int32", "int64"), (False, True)


def samples():
    for trees, pairs, places, ids, positions in product(YES_OR_NO, YES_OR_NO, YES_OR_NO, IDS, (*IDS, None)):
        yield replace(SAMPLES, has_trees=trees, has_pairs=pairs, has_places=places, node_dtypes=(ids,) * 2,
                      has_seed_times=trees, position_dtypes=(positions,) * 2)  # fmt: skip


def headers():
    for trees, pairs, ids, label in product(YES_OR_NO, YES_OR_NO, (*IDS, None), (*LABEL_DTYPES.values(), None)):
        yield replace(
            HEADERS, has_trees=trees, has_seed_times=trees, timed=(1,) if trees else (), has_pairs=pairs,
            node_dtypes=(ids,) * 2, label_dtype=label,
        )  # fmt: skip


def listed(head):
    """Of the table that starts so: what it says of the types of each column, whose numbers are left out."""
    rows = FORMAT[FORMAT.index(head) :].partition("\n\n")[0].splitlines()[2:]
    found = {}
    for _, names, types, *_ in (row.split("|") for row in rows):
        names = re.findall(r"`(\w+?)(?:_<\w>)*`", names)
        words = re.findall(r"(?:u?int|float)\d+", types)
        for number, name in enumerate(names):
            one_each = len(words) == len(names) and len(names) > 1
            found[name] = {words[number]} if one_each else set(words)
    return found


@pytest.mark.parametrize(
    ("head", "layouts"),
    [("| column | type |", samples), ("| column of a header |", headers)],
    ids=["samples", "headers"],
)
def test_the_format_lists_all_columns(head, layouts):
    found = {}
    for layout in layouts():
        for name, type_ in zip(layout.schema.names, layout.schema.types, strict=True):
            arrow = str(type_.value_type).replace("float", "float32").replace("float3232", "float32")
            found.setdefault(re.sub(r"(_\d+)+$", "", name), set()).add(arrow)
    assert listed(head) == found

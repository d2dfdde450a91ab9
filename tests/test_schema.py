"""Names of types: what they may be, and that every form of an edge type names only that one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.errors import ConfigError
from diskgnn.formats.artifacts import edge_file
from diskgnn.specs.schema import (
    SourceSchema,
    check_type_name,
    edge_type_name,
    one_type_schema,
    parse_edge_type,
    reverse_edge_type,
)

NAMES = st.text("abcXYZ019_-", min_size=1, max_size=64)
EDGE_TYPES = st.tuples(NAMES, NAMES, NAMES)


@settings(deadline=None)
@given(EDGE_TYPES, EDGE_TYPES)
def test_each_form_of_an_edge_type_is_its_own(one, other):
    assert parse_edge_type(edge_type_name(one)) == one
    assert parse_edge_type(list(one)) == one
    assert (edge_type_name(one) == edge_type_name(other)) == (one == other)
    assert (edge_file("indptr", one) == edge_file("indptr", other)) == (one == other)


def test_an_edge_type_by_hand():
    assert edge_type_name(("author", "writes", "paper")) == "author:writes:paper"
    assert reverse_edge_type(("author", "writes", "paper")) == ("paper", "rev_writes", "author")


@pytest.mark.parametrize("name", ["", "a.b", "a:b", "a b", "a" * 65, "ä", "a\n", 3, None])
def test_names_that_no_type_has(name):
    with pytest.raises(ConfigError, match="1 to 64 letters"):
        check_type_name(name)


@pytest.mark.parametrize("name", ["paper", "a:b", "a:b:c:d", 7, None, ["a", "b"]])
def test_what_is_no_edge_type(name):
    with pytest.raises(ConfigError, match="source:name:destination"):
        parse_edge_type(name)


def test_the_schema_by_type():
    cites = ("paper", "cites", "paper")
    writes = ("author", "writes", "paper")
    schema = SourceSchema((("paper", 5, 8), ("author", 3, None)), ((cites, None), (writes, 2)), "paper", "class", 4)
    assert schema.is_typed
    assert dict(schema.num_nodes) == {"paper": 5, "author": 3}
    assert dict(schema.num_features) == {"paper": 8, "author": None}
    assert dict(schema.num_edge_features) == {cites: None, writes: 2}
    assert not one_type_schema(5, 8, 4).is_typed

"""The one table: filters, parquet round trip, schema."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drillcore.table import COLUMNS, Row, Table

finite = st.none() | st.floats(allow_nan=False, allow_infinity=False)
rows = st.builds(
    Row, measure=st.sampled_from(["a", "b"]), layer=st.none() | st.integers(0, 99), adjacent=st.none() | st.booleans(),
    kind=st.none() | st.text(max_size=5), value=finite, bound=finite, status=st.sampled_from(["ok", "zero-matrix"]),
)  # fmt: skip


@given(st.lists(rows, max_size=8))
def test_parquet_gives_back_the_same_rows(tmp_path_factory: pytest.TempPathFactory, made: list[Row]) -> None:
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    table = Table.of(made, {"drillcore": "x", "nested": {"a": [1, 2]}})
    table.save(path)
    assert Table.load(path) == table


def test_an_empty_table_has_every_column() -> None:
    assert tuple(Table.of([]).frame.columns) == COLUMNS


def test_where_and_values() -> None:
    table = Table.of([Row(measure="m", layer=i, value=float(i) if i else None) for i in range(3)])
    assert table.where(measure="m").values() == [1.0, 2.0]
    assert [r.layer for r in table.where(layer=2)] == [2]
    assert len(table) == 3
    with pytest.raises(KeyError, match="no such column: colour"):
        table.where(colour="red")

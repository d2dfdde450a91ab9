"""The name that was meant is proposed wherever one is wrong, and nothing where nothing is near."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from commands import run

from diskgnn.specs.near_names import near_name

SHOP = """
CREATE TABLE users (id INTEGER PRIMARY KEY, since TIMESTAMP, age REAL, note TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, user INTEGER REFERENCES users, at TIMESTAMP, amount REAL);
INSERT INTO users VALUES (1, '2020-01-01', 20, 'a b'), (2, '2020-01-02', 40, 'c d');
INSERT INTO orders VALUES (1, 1, '2020-01-03', 1), (2, 2, '2020-01-04', 2);
"""


@pytest.mark.parametrize(
    ("found", "names", "meant"),
    [
        ("usrs", ["orders", "users"], "users"),
        ("USERS", ["orders", "users"], "users"),
        ("val", ["train", "valid", "test"], "valid"),
        ("trian", ["train", "valid", "test"], "train"),
        ("nothing", ["orders", "users"], None),
        ("", ["orders"], None),
        (None, ["orders"], None),
        ("users", [], None),
    ],
)
def test_the_nearest_is_found(found: object, names: list[str], meant: str | None) -> None:
    assert near_name(found, names) == ("" if meant is None else f"; did you mean {meant!r}?")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shop.db, and a graph of it that keeps columns."""
    folder = tmp_path_factory.mktemp("shop")
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.executescript(SHOP)
    connection.close()
    run("convert", folder / "graph", "--from", "sqlite", folder / "shop.db", "--set", "times=users.since,orders.at",
        "--set", "keep_columns=true")  # fmt: skip
    (folder / "seeds.csv").write_text("id,time,label\n1,2020-01-05,0\n2,2020-01-05,1\n")
    return folder


def test_a_word_of_several_is_told(tmp_path: Path) -> None:
    told = run("train", tmp_path, "--model", "relationl", exit_code=2).stderr
    assert "'sehgnn'; did you mean 'relational'?" in " ".join(told.split())
    assert "did you mean" not in run("train", tmp_path, "--model", "xxxx", exit_code=2).stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--from", "sqlit", "{}/shop.db"], "sqlite"),
        (["--from", "sqlit:{}/shop.db"], "sqlite"),
        (["--set", "time=users.since"], "times"),
        (["--set", "times=usrs.since"], "users"),
        (["--set", "times=users.sinse"], "since"),
        (["--key", "user=id"], "users"),
        (["--key", "users=idd"], "id"),
        (["--link", "orders.usr=users"], "user"),
        (["--link", "ordrs.user=users"], "orders"),
        (["--link", "orders.user=usrs"], "users"),
        (["--exclude", "users.agee"], "users.age"),
        (["--exclude", "agee"], "age"),
        (["--embed-text", "users.nota=hash:4"], "users.note"),
        (["--encode", "usrs.note=hash:4"], "users.note"),
        (["--encode", "users.age=numbr"], "number"),
    ],
)
def test_options_of_convert(shop: Path, tmp_path: Path, given: list[str], meant: str) -> None:
    words = [each.format(shop) for each in given]
    source = [] if given[0] == "--from" else ["--from", "sqlite", shop / "shop.db"]
    told = run("convert", tmp_path / "graph", *source, *words, exit_code=3 if "sinse" in given[1] else 2).stderr
    assert f"did you mean '{meant}'?" in " ".join(told.split())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--without", "usrs.age"], "users.age"),
        (["--without", "users.agee"], "age"),
        (["--target", "user"], "users"),
        (["--fanouts", "orders:f2p_usr:users=2"], "orders:f2p_user:users"),
        (["--temporal-window", "orders:f2p_user:usrs=30d"], "orders:f2p_user:users"),
        (["--target-seeds", "trian={}/seeds.csv"], "train"),
        (["--target-seeds", "val={}/seeds.csv"], "valid"),
        (["--target-column", "id=idd"], "id"),
        (["--target-column", "time=tim"], "time"),
    ],
)
def test_options_of_prepare(shop: Path, tmp_path: Path, given: list[str], meant: str) -> None:
    words = [each.format(shop) for each in given]
    defaults = {"--fanouts": "2", "--target": "users", "--target-seeds": f"train={shop}/seeds.csv"}
    for flag, value in defaults.items():
        words += [] if flag == given[0] else [flag, value]
    told = run("prepare", shop / "graph", tmp_path / "packed", *words, "--temporal", "last",
               exit_code=3 if given[0] == "--target-column" else 2).stderr  # fmt: skip
    assert f"did you mean '{meant}'?" in " ".join(told.split())
    assert not (tmp_path / "packed").exists()

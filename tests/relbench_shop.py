"""A shop as RelBench has a data set: customers, products, reviews and gifts, with what is missing in real ones; and
tasks of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import yaml
from relbench.base import Database, Dataset, EntityTask, RecommendationTask, Table, TaskType
from relbench.metrics import link_prediction_map, roc_auc

NUM_DAYS = 400
START = pd.Timestamp("1969-06-01")  # before 1970, as some of RelBench's
WORDS = ["good", "bad", "red", "blue", "warm", "late", "ünlucky", "works"]


class Shop(Dataset):
    """Reviews are good where the product suits the customer's city, so a model has something to learn."""

    val_timestamp = START + pd.Timedelta(days=300)
    test_timestamp = START + pd.Timedelta(days=350)

    def __init__(self, num_customers: int = 30, num_products: int = 25, num_reviews: int = 350, seed: int = 0) -> None:
        super().__init__()
        self.sizes, self.seed = (num_customers, num_products, num_reviews), seed

    def make_db(self) -> Database:
        random = np.random.default_rng(self.seed)
        customers, products, reviews = self.sizes
        city = random.integers(0, 3, customers)
        suits = random.integers(0, 3, products)
        # Each second once: of equal times nobody says which is the last.
        moments = START + pd.to_timedelta(
            random.choice(NUM_DAYS * 86400, customers + products + reviews, replace=False), unit="s"
        )
        joined, at = moments[:customers], moments[customers + products :]
        who, what = random.integers(0, customers, reviews), random.integers(0, products, reviews)
        is_good = (city[who] == suits[what]) ^ (random.random(reviews) < 0.1)
        customer = pd.DataFrame({
            "customer_id": [f"c{number}" for number in range(customers)],
            "joined": START + (joined - START) / 4,
            "age": np.where(random.random(customers) < 0.2, np.nan, random.integers(18, 80, customers)),
            "city": pd.Series(np.array(["Berlin", "Athens", "Lima"], object)[city]).where(
                random.random(customers) < 0.9, None),
            "member": random.random(customers) < 0.5,
        })  # fmt: skip
        product = pd.DataFrame({
            "product_id": [f"p{number}" for number in range(products)],
            "price": random.gamma(2.0, 10.0, products),
            "title": [None if number % 9 == 4 else " ".join(random.choice(WORDS, 3)) for number in range(products)],
            "tags": [[None, [], ["toy"], ["toy", "health"], ["home", "health", "art"]][number % 5]
                     for number in range(products)],
            "grade": pd.Series(random.integers(0, 5, products)).where(random.random(products) < 0.8),
            "shape": [random.standard_normal(3).astype(np.float32).tolist() for _ in range(products)],
        })  # fmt: skip
        review = pd.DataFrame({
            "review_id": [f"r{number}" for number in range(reviews)],
            # Some were deleted, some are not known.
            "customer_id": [None if lost < 0.03 else f"c{number + (lost > 0.97) * 1000}"
                            for number, lost in zip(who, random.random(reviews), strict=True)],
            "product_id": [f"p{number}" for number in what],
            "written": at,
            "rating": np.where(is_good, 5, 2).astype(float),
            "text": [f"{'good' if good else 'bad'} {random.choice(WORDS)}" for good in is_good],
            "bought": pd.Series(at - pd.to_timedelta(random.integers(1, 90, reviews), unit="h")).where(
                random.random(reviews) < 0.7),
        })  # fmt: skip
        review.loc[random.random(reviews) < 0.1, "rating"] = np.nan
        review.loc[random.random(reviews) < 0.1, "text"] = None
        gift = pd.DataFrame({
            "customer_id": [f"c{number}" for number in random.integers(0, customers, 40)],
            "product_id": [f"p{number}" for number in random.integers(0, products, 40)],
        })  # fmt: skip
        keys = {"customer_id": "customer", "product_id": "product"}
        return Database({
            "customer": Table(customer, {}, "customer_id", "joined"),
            "product": Table(product, {}, "product_id"),
            "review": Table(review, keys, "review_id", "written"),
            "gift": Table(gift, keys),
        })  # fmt: skip


class Churn(EntityTask):
    """Whether a customer who wrote a review writes none in the 25 days after a time."""

    task_type = TaskType.BINARY_CLASSIFICATION
    entity_col, entity_table, time_col, target_col = "customer_id", "customer", "timestamp", "churn"
    timedelta = pd.Timedelta(days=25)
    metrics = [roc_auc]  # noqa: RUF012
    sql = """
        SELECT timestamp, customer_id, CAST(NOT EXISTS (
            SELECT 1 FROM review WHERE review.customer_id = customer.customer_id
            AND written > timestamp AND written <= timestamp + INTERVAL '{timedelta}') AS INTEGER) AS churn
        FROM timestamps, customer WHERE joined <= timestamp ORDER BY timestamp, customer_id
    """

    def make_table(self, db: Database, timestamps: pd.Series) -> Table:
        keys = {self.entity_col: self.entity_table}
        return Table(_found(self.sql, self.timedelta, db, timestamps), keys, time_col=self.time_col)


class Reviewed(RecommendationTask):
    """Which products a customer reviews in the 25 days after a time."""

    task_type = TaskType.LINK_PREDICTION
    src_entity_col, src_entity_table = "customer_id", "customer"
    dst_entity_col, dst_entity_table = "product_id", "product"
    time_col, timedelta, eval_k = "timestamp", pd.Timedelta(days=25), 5
    metrics = [link_prediction_map]  # noqa: RUF012
    sql = """
        SELECT timestamp, CAST(customer_id AS BIGINT) AS customer_id,
               LIST(DISTINCT CAST(product_id AS BIGINT)) AS product_id
        FROM timestamps, review WHERE written > timestamp AND written <= timestamp + INTERVAL '{timedelta}'
        AND customer_id IS NOT NULL GROUP BY timestamp, customer_id ORDER BY timestamp, customer_id
    """

    def make_table(self, db: Database, timestamps: pd.Series) -> Table:
        keys = {self.src_entity_col: self.src_entity_table, self.dst_entity_col: self.dst_entity_table}
        return Table(_found(self.sql, self.timedelta, db, timestamps), keys, time_col=self.time_col)


def _found(sql: str, timedelta: pd.Timedelta, db: Database, times: pd.Series) -> pd.DataFrame:
    # DuckDB finds tables by these names.
    review = db.table_dict["review"].df[["customer_id", "product_id", "written"]]  # noqa: F841
    customer, timestamps = db.table_dict["customer"].df, pd.DataFrame({"timestamp": times})  # noqa: F841
    return duckdb.sql(sql.replace("{timedelta}", str(timedelta))).df()


def write_folder(shop: Shop, folder: Path, hidden: dict[str, list[list[str]]]) -> None:
    """Writes the data set as RelBench 3 lays one out.

    Args:
        hidden: (table, column) pairs that the tasks `churn` and `reviewed` must not see. The labels of `reviewed` are
            for RelBench to compute.
    """
    (folder / "db").mkdir(parents=True)
    tables: dict[str, Any] = {}
    for name, table in Shop.get_db.__wrapped__(shop, upto_test_timestamp=False).table_dict.items():
        table.df.to_parquet(folder / "db" / f"{name}.parquet", index=False)
        tables[name] = {"pkey": table.pkey_col, "time_col": table.time_col, "fkeys": table.fkey_col_to_pkey_table}
    times = {"val_timestamp": str(shop.val_timestamp), "test_timestamp": str(shop.test_timestamp)}
    _write_manifest(folder, {"name": "shop", **times, "tables": tables})
    of_task = {
        "churn": {"entity_table": "customer", "entity_col": "customer_id", "target_col": "churn",
                  "task_type": "binary_classification", "sql": Churn.sql},
        "reviewed": {"src_entity_table": "customer", "src_entity_col": "customer_id", "dst_entity_table": "product",
                     "dst_entity_col": "product_id", "eval_k": 5, "task_type": "recommendation", "sql": Reviewed.sql},
    }  # fmt: skip
    for name, said in of_task.items():
        common = {"name": name, "kind": "forecast", "time_col": "timestamp", "timedelta": "25 days"}
        _write_manifest(folder / "tasks" / name, {**common, **said, "remove_columns": hidden[name]})
    for split in ("train", "val", "test"):
        table = Churn(shop).get_table(split, mask_input_cols=False)
        table.df.to_parquet(folder / "tasks" / "churn" / f"{split}.parquet", index=False)


def _write_manifest(folder: Path, content: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.yaml").write_text(yaml.safe_dump({**content, "manifest_version": 1}, sort_keys=False))

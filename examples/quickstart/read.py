"""Read a table of the lake with PyIceberg, in the driver's pod: kubectl exec -i shop-driver-0 -- python - < read.py."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
from pyiceberg.table import StaticTable

lake = Path(os.environ["LEVADA_SECRETS"]) / "lake"
with psycopg.connect(
    host="database",
    dbname="catalog",
    user=(lake / "jdbc.user").read_text(),
    password=(lake / "jdbc.password").read_text(),
) as catalog:
    [location] = catalog.execute(
        "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = 'shop_public' AND table_name = 'orders'"
    ).fetchone() or [""]
keys = {name: (lake / name).read_text() for name in ("s3.access-key-id", "s3.secret-access-key")}
orders = StaticTable.from_metadata(location, {"s3.endpoint": "http://objects:9000", "s3.region": "us-east-1", **keys})
for row in orders.scan(row_filter="customer = 7 AND id < 3000").to_arrow().sort_by("id").to_pylist():
    print(row["id"], row["amount"])

"""A small shop: tables of several shapes, and writers that never stop changing them."""

from __future__ import annotations

import random
import threading
from typing import Any, LiteralString

import psycopg
from tests.rigs.database import Database

TABLES = (
    "customers",
    "addresses",
    "products",
    "prices",
    "orders",
    "order_items",
    "payments",
    "shipments",
    "reviews",
    "carts",
    "events",
    "notes",
)

_SCHEMA: LiteralString = """
CREATE TYPE status AS ENUM ('new', 'paid', 'sent', 'done');
CREATE TABLE customers (id bigserial PRIMARY KEY, name text NOT NULL, email varchar(200), born date,
  score numeric(12,2), active bool, tags text[], created timestamptz DEFAULT now());
CREATE TABLE addresses (customer_id bigint, kind text, line text, PRIMARY KEY (customer_id, kind));
CREATE TABLE products (sku uuid PRIMARY KEY, title text, weight float8, attrs jsonb, image bytea);
CREATE TABLE prices (sku text, currency char(3), amount numeric(20,4), valid_from timestamp, PRIMARY KEY (sku, currency));
CREATE TABLE orders (id bigserial PRIMARY KEY, customer_id bigint, status status DEFAULT 'new', total numeric(14,2),
  placed timestamptz DEFAULT now(), comment text);
CREATE TABLE order_items (order_id bigint, line int, sku text, quantity smallint, price numeric(10,2),
  PRIMARY KEY (order_id, line));
CREATE TABLE payments (id serial PRIMARY KEY, order_id bigint, amount numeric(14,2), paid_at timestamptz, ok bool);
CREATE TABLE shipments (code varchar(40) PRIMARY KEY, order_id bigint, sent date, at time, parts int[]);
CREATE TABLE reviews (id int PRIMARY KEY, stars int2, body text);
ALTER TABLE reviews REPLICA IDENTITY FULL;
CREATE TABLE carts (a int NOT NULL, b text NOT NULL, c text, UNIQUE (a, b));
CREATE UNIQUE INDEX carts_identity ON carts (a, b);
ALTER TABLE carts REPLICA IDENTITY USING INDEX carts_identity;
CREATE TABLE events (id bigint PRIMARY KEY, at timestamptz, payload json, ratio real);
CREATE TABLE notes (id bigint PRIMARY KEY, body text, stamp int);
"""


def create(db: Database, rows: int) -> None:
    """Make the tables and fill them with ``rows`` rows in all."""
    n = max(1, rows // 12)
    fills: list[LiteralString] = [
        "INSERT INTO customers (name, email, born, score, active, tags) SELECT 'name ' || i, 'c' || i || '@x.org',"
        " date '1950-01-01' + (i %% 20000)::int, (i %% 100000) / 7.0, i %% 3 = 0, ARRAY['t' || i %% 5, NULL, 'a \"q\", b']"
        " FROM generate_series(1, %(n)s) i",
        "INSERT INTO addresses SELECT i, k, 'line ' || i FROM generate_series(1, %(n)s / 2) i, unnest(ARRAY['home','work']) k",
        "INSERT INTO products SELECT md5(i::text)::uuid, 'title ' || i, i / 3.0, jsonb_build_object('i', i, 'x', 'é'),"
        " decode(md5(i::text), 'hex') FROM generate_series(1, %(n)s) i",
        "INSERT INTO prices SELECT 'sku-' || i, 'EUR', i / 9.0, timestamp '2020-01-01' + i * interval '1 minute'"
        " FROM generate_series(1, %(n)s) i",
        "INSERT INTO orders (customer_id, status, total, comment) SELECT i, 'new', i / 3.0, CASE WHEN i %% 5 > 0 THEN 'c' || i END"
        " FROM generate_series(1, %(n)s) i",
        "INSERT INTO order_items SELECT i / 3, i %% 3, 'sku-' || i, i %% 30, i / 8.0 FROM generate_series(1, %(n)s) i",
        "INSERT INTO payments (order_id, amount, paid_at, ok) SELECT i, i / 7.0, now(), i %% 2 = 0 FROM generate_series(1, %(n)s) i",
        "INSERT INTO shipments SELECT 'code-' || i, i, date '2021-01-01' + (i %% 900)::int, time '08:00' + (i %% 3600) * interval '1 s',"
        " ARRAY[i %% 7, NULL, i %% 11] FROM generate_series(1, %(n)s) i",
        "INSERT INTO reviews SELECT i, i %% 6, repeat('word ', (i %% 40)::int) FROM generate_series(1, %(n)s) i",
        "INSERT INTO carts SELECT i, 'b' || i, 'c' FROM generate_series(1, %(n)s) i",
        "INSERT INTO events SELECT i, now(), json_build_object('k', i), i / 3.0 FROM generate_series(1, %(n)s) i",
        "INSERT INTO notes SELECT i, CASE WHEN i %% 50 = 0 THEN (SELECT string_agg(md5((i + g)::text), '') FROM"
        " generate_series(1, 300) g) ELSE 'short' END, 0 FROM generate_series(1, %(n)s) i",
    ]
    with db.connect() as connection:
        connection.execute(_SCHEMA)
        for fill in fills:
            connection.execute(fill, {"n": n})


class Writers:
    """Threads that insert, update, delete, change keys, roll back, and use savepoints, each with numbers of its own."""

    def __init__(self, db: Database, threads: int = 2, pause_s: float = 0.005) -> None:
        self._db = db
        self._stop = threading.Event()
        self._pause_s = pause_s
        self._threads = [threading.Thread(target=self._run, args=(k,), daemon=True) for k in range(threads)]
        self.transactions = 0
        self.errors: list[BaseException] = []

    def __enter__(self) -> Writers:
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for t in self._threads:
            t.join()
        assert not self.errors, self.errors

    def _run(self, seed: int) -> None:
        r = random.Random(seed)
        serial = 10_000_000 * (seed + 1)
        try:
            with psycopg.connect(self._db.uri, autocommit=True) as connection:
                while not self._stop.wait(self._pause_s):
                    serial += 10
                    try:
                        with connection.transaction():
                            for _ in range(r.randint(1, 4)):
                                self._step(connection, r, serial, seed)
                                serial += 1
                            if r.random() < 0.1:
                                raise psycopg.Rollback
                        self.transactions += 1
                    except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                        continue
        except BaseException as error:
            self.errors.append(error)

    def _step(self, c: psycopg.Connection[Any], r: random.Random, n: int, seed: int) -> None:
        i = r.randint(1, 2000)
        match r.randint(0, 13):
            case 0:
                c.execute(
                    "INSERT INTO customers (name, score, tags) VALUES (%s, %s, %s)", [f"new {n}", n / 7, ["x", None]]
                )
            case 1:
                c.execute("UPDATE customers SET score = score + 1, active = NOT active WHERE id %% 997 = %s", [i % 997])
            case 2:
                c.execute("DELETE FROM customers WHERE id = %s", [i])
            case 3:
                c.execute("INSERT INTO addresses VALUES (%s, 'home', %s) ON CONFLICT (customer_id, kind) DO UPDATE"
                          " SET line = excluded.line", [i, f"moved {n}"])  # fmt: skip
            case 4:
                c.execute("UPDATE products SET title = %s, attrs = attrs || '{\"n\": 1}' WHERE sku = md5(%s)::uuid",
                          [f"t{n}", str(i)])  # fmt: skip
            case 5:
                c.execute("UPDATE prices SET sku = %s WHERE sku = %s", [f"sku-{n}", f"sku-{i}"])
            case 6:
                c.execute("UPDATE notes SET stamp = stamp + 1 WHERE id %% 50 = 0 AND id %% 350 = %s", [i % 350])
            case 7:
                c.execute("INSERT INTO orders (customer_id, total) VALUES (%s, %s)", [i, n])
                c.execute("INSERT INTO order_items VALUES (%s, 0, 'sku', 1, 2.5)", [n])
            case 8:
                c.execute("UPDATE reviews SET stars = %s WHERE id = %s", [r.randint(0, 5), i])
            case 9:
                c.execute("UPDATE carts SET b = b || 'x' WHERE a = %s", [i])
            case 10:
                c.execute("DELETE FROM reviews WHERE id = %s", [i])
            case 11:
                c.execute("INSERT INTO events VALUES (%s, now(), '{\"a\": 1}', %s)", [n, r.random()])
            case 12:
                c.execute("SAVEPOINT s")
                c.execute("INSERT INTO payments (order_id, amount) VALUES (%s, 1)", [n])
                if r.random() < 0.5:
                    c.execute("ROLLBACK TO SAVEPOINT s")
                c.execute("UPDATE payments SET ok = true WHERE id = %s", [i])
            case _:
                c.execute("DELETE FROM shipments WHERE code = %s", [f"code-{i}"])
                c.execute("INSERT INTO shipments VALUES (%s, %s, now(), '12:00', '{}')", [f"new-{n}", n])

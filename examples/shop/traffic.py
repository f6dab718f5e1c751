"""A day of a shop: orders, payments, new prices, returns and empty baskets. Some transactions are rolled back."""

from __future__ import annotations

import random
import threading
from collections import Counter

import psycopg
from psycopg.types.json import Jsonb


class Traffic:
    """Writes to the shop from one connection, in transactions of one to a few dozen rows, until it is stopped."""

    def __init__(self, uri: str, seed: int = 7) -> None:
        self.transactions: Counter[str] = Counter()
        self._uri = uri
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def start(self) -> Traffic:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Wait for the last transaction. Raise the error of the thread, if it has one."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        actions = [self.order] * 6 + [self.pay] * 4 + [self.reprice] * 2 + [self.move, self.cancel, self.change_mind]
        try:
            with psycopg.connect(self._uri, autocommit=True) as connection:
                self._customers = connection.execute("SELECT max(id) FROM customers").fetchone()[0]
                self._skus = [sku for (sku,) in connection.execute("SELECT sku FROM products")]
                while not self._stop.wait(0.004):
                    action = self.empty_baskets if self._random.random() < 0.001 else self._random.choice(actions)
                    action(connection)
                    self.transactions[action.__name__] += 1
        except BaseException as error:
            self._error = error

    def order(self, connection: psycopg.Connection) -> None:
        """Insert into three tables and update a fourth, in one transaction."""
        skus = self._random.choices(self._skus, k=self._random.randint(1, 4))
        customer = self._random.randint(1, self._customers)
        with connection.transaction():
            (order,) = connection.execute(
                "INSERT INTO orders (customer_id, total, note) VALUES (%s, %s, %s) RETURNING id",
                [customer, self._random.randint(100, 99999) / 100, self._random.choice([None, "", "по-русски", "☕"])],
            ).fetchone()
            for line, sku in enumerate(skus, 1):
                quantity = self._random.randint(1, 5)
                connection.execute(
                    "INSERT INTO order_items SELECT %s, %s, sku, %s, price FROM products WHERE sku = %s",
                    [order, line, quantity, sku],
                )
                # The description is out of line and unchanged: it is not in the WAL.
                connection.execute("UPDATE products SET stock = stock - %s WHERE sku = %s", [quantity, sku])
            connection.execute(
                "INSERT INTO baskets VALUES (%s, %s) ON CONFLICT (customer_id) DO UPDATE SET items = excluded.items",
                [customer, Jsonb([str(sku) for sku in skus])],
            )

    def pay(self, connection: psycopg.Connection) -> None:
        """Pay the oldest new orders."""
        with connection.transaction():
            connection.execute(
                "WITH due AS (UPDATE orders SET status = 'paid' WHERE id IN"
                " (SELECT id FROM orders WHERE status = 'new' ORDER BY id DESC LIMIT 3) RETURNING id, total)"
                " INSERT INTO payments"
                " SELECT 'PAY-' || gen_random_uuid(), id, total, now(), decode(md5(id::text), 'hex'), '::1' FROM due"
            )

    def reprice(self, connection: psycopg.Connection) -> None:
        """Change a few products, one of them in its long description."""
        with connection.transaction():
            for sku in self._random.sample(self._skus, 5):
                connection.execute("UPDATE products SET price = round(price * 1.01, 2) WHERE sku = %s", [sku])
            connection.execute(
                "UPDATE products SET description = reverse(description), attributes = attributes || '{\"new\": true}'"
                " WHERE sku = %s",
                [self._random.choice(self._skus)],
            )

    def move(self, connection: psycopg.Connection) -> None:
        """Give a payment another primary key: a delete and an insert in one row change."""
        with connection.transaction():
            connection.execute(
                "UPDATE payments SET reference = reference || '*' WHERE reference IN"
                " (SELECT reference FROM payments WHERE reference LIKE 'PAY-0%' AND reference NOT LIKE '%*' LIMIT 2)"
            )

    def cancel(self, connection: psycopg.Connection) -> None:
        """Delete a few orders with their items and payments."""
        with connection.transaction():
            connection.execute(
                "DELETE FROM orders WHERE id IN (SELECT id FROM orders WHERE status = 'returned' LIMIT 5)"
            )

    def change_mind(self, connection: psycopg.Connection) -> None:
        """Write, partly and then wholly roll back: nothing of it may arrive."""
        with connection.transaction(force_rollback=True):
            connection.execute("UPDATE customers SET name = 'nobody' WHERE id <= 50")
            with connection.transaction(force_rollback=True):
                connection.execute("DELETE FROM baskets")

    def empty_baskets(self, connection: psycopg.Connection) -> None:
        """Truncate."""
        with connection.transaction():
            connection.execute("TRUNCATE baskets")

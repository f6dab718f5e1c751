-- A scale of 1 is about 250,000 rows.

-- The rows below fit together: that need not be checked for each of them.
SET session_replication_role = replica;

INSERT INTO customers (email, name, country, born, newsletter, tags, created_at)
SELECT 'customer' || i || '@example.org', 'Customer ' || i, (ARRAY['DE','FR','PL','RU','SE'])[1 + i %% 5],
       DATE '1950-01-01' + (i * 37 %% 20000), i %% 3 = 0, ARRAY['since-' || 2010 + i %% 15, 'group ' || i %% 7],
       TIMESTAMPTZ '2020-01-01 00:00:00Z' + i * INTERVAL '1 hour 1 second'
FROM generate_series(1, (20000 * %(scale)s)::int) AS i;

INSERT INTO products (title, price, weight_kg, stock, attributes, description)
SELECT 'Product ' || i, (i * 7919 %% 100000) / 100.0, i / 13.0, i %% 500,
       jsonb_build_object('colour', (ARRAY['red','green','blue'])[1 + i %% 3], 'size', i %% 10),
       (SELECT string_agg(md5(i || ':' || part), ' ') FROM generate_series(1, 150) AS part)
FROM generate_series(1, 1000) AS i;

INSERT INTO orders (customer_id, status, total, ordered_at, deliver_on, note)
SELECT 1 + i %% (20000 * %(scale)s)::int, (ARRAY['new','paid','shipped','returned']::order_status[])[1 + i %% 4], (i * 31 %% 50000) / 100.0,
       TIMESTAMPTZ '2024-01-01 00:00:00Z' + i * INTERVAL '17 seconds',
       CASE WHEN i %% 5 = 0 THEN NULL ELSE DATE '2024-01-03' + i %% 300 END,
       CASE WHEN i %% 11 = 0 THEN 'ring twice, "please"' || chr(10) || 'second floor' END
FROM generate_series(1, (50000 * %(scale)s)::int) AS i;

WITH numbered AS (SELECT sku, price, row_number() OVER (ORDER BY title) - 1 AS n FROM products)
INSERT INTO order_items (order_id, line, sku, quantity, price)
SELECT o.id, l, p.sku, 1 + o.id %% 4, p.price
FROM orders o CROSS JOIN generate_series(1, 3) AS l JOIN numbered p ON p.n = (o.id * 7 + l * 13) %% 1000;

INSERT INTO payments (reference, order_id, amount, paid_at, checksum, client)
SELECT 'PAY-' || lpad(id::text, 10, '0'), id, total, ordered_at AT TIME ZONE 'UTC' + INTERVAL '3 minutes',
       decode(md5(id::text), 'hex'), ('10.' || id %% 256 || '.0.' || id %% 250)::inet
FROM orders WHERE status <> 'new';

INSERT INTO baskets (customer_id, items)
SELECT id, jsonb_build_array(id, 'thing') FROM customers WHERE id %% 20 = 0;

RESET session_replication_role;
ANALYZE;

-- A small shop: typical types, keys of several kinds, and rows enough that a copy takes a moment.

CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'returned');

CREATE TABLE customers (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email      text NOT NULL UNIQUE,
    name       varchar(100) NOT NULL,
    country    char(2) NOT NULL,
    born       date,
    newsletter boolean NOT NULL DEFAULT false,
    tags       text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE products (
    sku         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    title       text NOT NULL,
    price       numeric(12, 2) NOT NULL,
    weight_kg   double precision,
    stock       integer NOT NULL,
    attributes  jsonb NOT NULL DEFAULT '{}',
    description text -- long enough to be kept out of line: most updates leave it unchanged and unsent
);

CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      order_status NOT NULL DEFAULT 'new',
    total       numeric(12, 2) NOT NULL,
    ordered_at  timestamptz NOT NULL DEFAULT now(),
    deliver_on  date,
    note        text
);

CREATE TABLE order_items (
    order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line     smallint NOT NULL,
    sku      uuid NOT NULL REFERENCES products,
    quantity integer NOT NULL,
    price    numeric(12, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE payments (
    reference  text PRIMARY KEY,
    order_id   bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    amount     numeric(12, 2) NOT NULL,
    paid_at    timestamp,
    checksum   bytea,
    client     inet
);

CREATE TABLE baskets (
    customer_id bigint PRIMARY KEY REFERENCES customers,
    items       jsonb NOT NULL,
    expires     interval NOT NULL DEFAULT '30 minutes'
);

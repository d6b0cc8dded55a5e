CREATE TABLE customers (
    id          BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name        TEXT NOT NULL,
    email       TEXT NOT NULL UNIQUE,
    country     CHAR(2) NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE TABLE orders (
    id           BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    customer_id  BIGINT NOT NULL REFERENCES customers (id),
    state        TEXT NOT NULL CHECK (state IN ('open', 'paid', 'sent', 'cancelled')),
    total_cents  BIGINT NOT NULL CHECK (total_cents >= 0),
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    paid_at      TIMESTAMPTZ,
    sent_at      TIMESTAMPTZ
);

CREATE INDEX orders_by_customer ON orders (customer_id, created_at DESC);
CREATE INDEX orders_open ON orders (created_at) WHERE state = 'open';

INSERT INTO customers (name, email, country) VALUES
    ('Ada Berg', 'ada@example.com', 'SE'),
    ('Bruno Costa', 'bruno@example.com', 'PT'),
    ('Chiara Deluca', 'chiara@example.com', 'IT'),
    ('Dmitri Egorov', 'dmitri@example.com', 'LT'),
    ('Elif Fidan', 'elif@example.com', 'TR'),
    ('Farid Ghani', 'farid@example.com', 'DE');

WITH monthly AS (
    SELECT customer_id,
           date_trunc('month', paid_at) AS month,
           sum(total_cents) AS cents,
           count(*) AS orders
    FROM orders
    WHERE state IN ('paid', 'sent')
    GROUP BY customer_id, date_trunc('month', paid_at)
),
ranked AS (
    SELECT monthly.*,
           rank() OVER (PARTITION BY month ORDER BY cents DESC) AS place
    FROM monthly
)
SELECT customers.name, ranked.month, ranked.cents / 100.0 AS total, ranked.orders
FROM ranked
JOIN customers ON customers.id = ranked.customer_id
WHERE ranked.place <= 3
ORDER BY ranked.month DESC, ranked.place;

UPDATE orders
SET state = 'cancelled'
WHERE state = 'open'
  AND created_at < now() - INTERVAL '30 days';

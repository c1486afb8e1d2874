"""Tables of the database, as the steps that lead there from an empty one."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE versions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of publication
        version TEXT NOT NULL UNIQUE,
        adapter TEXT NOT NULL,
        label TEXT NOT NULL,
        digest TEXT NOT NULL,
        base_digest TEXT NOT NULL,
        rank INTEGER NOT NULL,
        metadata TEXT NOT NULL,  -- JSON object
        published_at_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX versions_by_adapter ON versions (adapter, id);

    CREATE TABLE adapters (
        name TEXT PRIMARY KEY,
        next_number INTEGER NOT NULL,  -- kept apart from versions: a number is never used again
        active TEXT REFERENCES versions (version),
        held TEXT REFERENCES versions (version)
    ) STRICT;

    -- Rows outlive the versions they speak of, so these are no references.
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        decided_at_s REAL NOT NULL,
        kind TEXT NOT NULL,
        adapter TEXT NOT NULL,
        version TEXT,
        previous TEXT,
        reason TEXT NOT NULL,
        numbers TEXT NOT NULL  -- JSON object
    ) STRICT;
    CREATE INDEX decisions_by_adapter ON decisions (adapter, id);
    """,
)
"""Entry k takes a database from version k to k + 1; published entries never change."""

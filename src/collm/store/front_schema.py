"""Tables of the front's database, as the steps that lead there from an empty one."""

from collm.store.schema import MIGRATIONS

FRONT_MIGRATIONS: tuple[str, ...] = (
    # Versions, active and held ones, and decisions: the same tables as a replica's first.
    MIGRATIONS[0],
    """
    CREATE TABLE pins (
        version TEXT PRIMARY KEY REFERENCES versions (version)
    ) STRICT;

    CREATE TABLE rounds (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        adapter TEXT NOT NULL,
        round INTEGER NOT NULL,
        status TEXT NOT NULL,
        plan TEXT NOT NULL,  -- JSON object
        base_digest TEXT NOT NULL,
        started_at_s REAL NOT NULL,
        deadline_at_s REAL,  -- set once members were asked
        candidate TEXT,  -- no reference: it outlives the version
        results TEXT NOT NULL DEFAULT '{}',  -- JSON object, an entry for each step
        reason TEXT,
        ended_at_s REAL,
        UNIQUE (adapter, round)
    ) STRICT;
    CREATE UNIQUE INDEX one_round_per_adapter ON rounds (adapter) WHERE ended_at_s IS NULL;

    CREATE TABLE round_members (
        adapter TEXT NOT NULL,
        round INTEGER NOT NULL,
        member TEXT NOT NULL,
        outcome TEXT NOT NULL,
        report TEXT,  -- JSON object; set exactly when the update's file was complete
        reason TEXT,
        used_in INTEGER,  -- the round whose aggregate holds the update
        PRIMARY KEY (adapter, round, member),
        FOREIGN KEY (adapter, round) REFERENCES rounds (adapter, round)
    ) STRICT;
    """,
    """
    CREATE TABLE allocations (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        made_at_s REAL NOT NULL,
        content TEXT NOT NULL  -- JSON object
    ) STRICT;
    """,
)
"""Entry k takes a database from version k to k + 1; published entries never change."""

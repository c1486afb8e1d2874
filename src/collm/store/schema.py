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
    """
    CREATE TABLE pins (
        version TEXT PRIMARY KEY REFERENCES versions (version)
    ) STRICT;

    CREATE TABLE files (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        file_id TEXT NOT NULL UNIQUE,
        filename TEXT NOT NULL,
        purpose TEXT NOT NULL,
        num_bytes INTEGER NOT NULL,
        num_samples INTEGER NOT NULL,
        digest TEXT NOT NULL,
        created_at_s REAL NOT NULL,
        is_deleted INTEGER NOT NULL DEFAULT 0
    ) STRICT;

    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id TEXT NOT NULL UNIQUE,
        adapter TEXT NOT NULL,
        status TEXT NOT NULL,
        training_file TEXT REFERENCES files (file_id),
        validation_file TEXT REFERENCES files (file_id),
        settings TEXT NOT NULL,  -- JSON object
        metadata TEXT NOT NULL,  -- JSON object of texts
        is_continuous INTEGER NOT NULL,
        is_configured INTEGER NOT NULL,
        created_at_s REAL NOT NULL,
        started_at_s REAL,
        finished_at_s REAL,  -- set exactly when the job has ended
        num_trained_tokens INTEGER NOT NULL DEFAULT 0,
        result TEXT,  -- no reference: it outlives the version
        error TEXT  -- JSON object
    ) STRICT;
    CREATE UNIQUE INDEX one_job_per_adapter ON jobs (adapter) WHERE finished_at_s IS NULL;
    CREATE VIEW unfinished_jobs AS SELECT * FROM jobs WHERE finished_at_s IS NULL;

    CREATE TABLE job_events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        event_id TEXT NOT NULL UNIQUE,
        job_id TEXT NOT NULL REFERENCES jobs (job_id),
        level TEXT NOT NULL,
        kind TEXT NOT NULL,
        message TEXT NOT NULL,
        data TEXT NOT NULL,  -- JSON object
        created_at_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX job_events_by_job ON job_events (job_id, id);

    CREATE TABLE job_checkpoints (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        checkpoint_id TEXT NOT NULL UNIQUE,
        job_id TEXT NOT NULL REFERENCES jobs (job_id),
        version TEXT NOT NULL,  -- no reference: it outlives the version
        step INTEGER NOT NULL,
        metrics TEXT NOT NULL,  -- JSON object
        created_at_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX job_checkpoints_by_job ON job_checkpoints (job_id, id);

    CREATE TABLE responses (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        response_id TEXT NOT NULL UNIQUE,
        model TEXT NOT NULL,
        adapter TEXT,
        version TEXT NOT NULL,
        messages TEXT NOT NULL,  -- JSON array of objects
        answers TEXT NOT NULL,  -- JSON array of texts
        created_at_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX responses_by_age ON responses (created_at_s);

    CREATE TABLE feedback (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        feedback_id TEXT NOT NULL UNIQUE,
        response_id TEXT NOT NULL,
        choice INTEGER NOT NULL,
        adapter TEXT NOT NULL,
        version TEXT NOT NULL,
        rating REAL,
        messages TEXT,  -- JSON array of objects
        weight REAL NOT NULL,
        digest TEXT NOT NULL,  -- of what makes it a duplicate; outlives the messages
        created_at_s REAL NOT NULL,
        is_deleted INTEGER NOT NULL DEFAULT 0,
        UNIQUE (adapter, digest)
    ) STRICT;
    CREATE INDEX feedback_by_adapter ON feedback (adapter, id);
    """,
    # Answers by the base model, which no feedback is taken on, were kept as well.
    "DELETE FROM responses WHERE adapter IS NULL;",
)
"""Entry k takes a database from version k to k + 1; published entries never change."""

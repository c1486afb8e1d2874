"""What outlives a process: rows in SQLite and files beside them, all in one data folder."""

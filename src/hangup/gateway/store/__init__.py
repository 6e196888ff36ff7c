"""Storage that outlives the process, in SQLite or PostgreSQL: the ledger and the job store."""

"""Storage that outlives the process, in SQLite: the ledger and the job store."""

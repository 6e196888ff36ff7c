"""What outlives the process: the ledger, in SQLite."""

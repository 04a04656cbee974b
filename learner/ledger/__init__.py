"""The ledger: everything that must survive a crash, in SQLite."""

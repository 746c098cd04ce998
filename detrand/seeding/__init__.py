"""Which ``(seed, op_seed, run)`` a random op takes next: pure Python, no framework."""

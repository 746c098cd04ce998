"""One table, random op by way of executing, that drives the parity tests: `python -m tests.conformance` prints it."""

"""The migrations are no tests: ``python -m tests.foreign_ports FOLDER`` runs them."""

collect_ignore = ["migrations"]

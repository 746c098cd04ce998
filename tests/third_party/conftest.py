"""The migrations are no tests: ``python -m tests.third_party FOLDER`` runs them."""

collect_ignore = ["migrations"]

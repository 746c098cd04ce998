"""What tests read from a report."""


def failed(report):
    """Return the names of the checks that failed."""
    return {check.name for check in report.checks if not check.ok}

"""Validates the sound ports; exits with 1 if one fails."""

import sys

import detrand
from tests.faults.sound import sound_ports

if __name__ == "__main__":
    ports = sound_ports()
    failed = 0
    for name in sys.argv[1:] or ports:
        report = detrand.validate(ports[name]())
        failed += not report.ok
        checks = ", ".join(check.name for check in report.checks if not check.ok)
        print(name, "passed" if report.ok else f"FAILED: {checks}", flush=True)
    print(f"{failed} of {len(sys.argv[1:] or ports)} sound ports failed")
    sys.exit(bool(failed))

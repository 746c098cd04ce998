"""Interrupts at the lines of detrand's own code, after which nothing may be left behind."""

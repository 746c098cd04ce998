"""Ports with one fault each, on the lines that end in ``# FAULT``; ``fault=False`` makes the sound twin."""

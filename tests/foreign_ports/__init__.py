"""Migrations of keras.applications: ports that other people made, against slim's networks, both unchanged.

Each file in `migrations` has a pair: ``as_found``, in which the checks that `EXPECTED` lists fail because the two
networks differ; and ``configured``, in which all pass. `python -m tests.foreign_ports FOLDER` validates them.
"""

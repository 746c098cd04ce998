"""What seeding and the shim cost: each case beside plain TensorFlow and its official tools, in one run.

``python -m benchmarks`` from the root of the repository prints a table; ``--help`` lists the options.

  seeding.py    random ops, seeded and not
  shim.py       TF1 code in layers
  workloads.py  both, by name
  cases.py      what a workload is
  timing.py     seconds, and their ratio to the baseline's
  memory.py     growth of the process
  report.py     the table and the JSON file
  philox.py     detrand.philox beside NumPy's generator (``python -m benchmarks.philox``)
"""

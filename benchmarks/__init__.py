"""What seeding costs: each case beside plain TensorFlow and the official tool, in one run.

``python -m benchmarks`` from the root of the repository prints a table; ``--help`` lists the options.

  workloads.py  what is measured
  cases.py      ways to seed it
  timing.py     seconds, and their ratio to plain TensorFlow's
  memory.py     growth of the process
  report.py     the table and the JSON file
"""

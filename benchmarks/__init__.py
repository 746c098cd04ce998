"""The cost of seeding, the shim and the recorder, compared with plain TensorFlow and its official tools in one run.

``python -m benchmarks`` from the root of the repository prints a table of each group; ``--help`` lists the options.

  workloads.py  all groups of workloads, and how the command line names them
  cases.py      what a group, a workload and a case are
  programs.py   what draws random numbers
  seeding.py    these programs in each way of executing, seeded and not
  shim.py       TF1 code in layers
  philox.py     detrand.philox beside NumPy's generator
  devices.py    where it runs, and the clock that counts there
  timing.py     seconds, and their ratio to the baseline's
  memory.py     growth of the process
  results.py    what was measured, and on what machine; the JSON file
  tables.py     the same as cells of text, which terminal.py prints, and page.py puts into the documentation
  plot.py       the ratios as a picture
"""

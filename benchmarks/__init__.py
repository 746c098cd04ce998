"""The cost of seeding, the shim and the recorder, compared with plain TensorFlow and its official tools in one run.

``python -m benchmarks`` from the root of the repository prints a table of each group; ``--help`` lists the options.

- `workloads`: all groups of workloads, by the names of the command line.
- `cases`: the classes of a group, a workload and a case.
- `programs`: programs that draw random numbers.
- `seeding`: these programs in each way of executing, with and without a seed.
- `shim`: TF1 code in layers.
- `philox`: `detrand.philox` and NumPy's generator.
- `recorder`: training steps with and without a recorder.
- `devices`: the device that runs the workloads, and its clock.
- `timing`: seconds, and their ratio to the baseline.
- `memory`: the growth of the process.
- `results`: the measurements and the machine, and the JSON file.
- `tables`: the results as cells of text, for `terminal` and for `page`, which writes the page of the documentation.
- `plot`: a plot of the ratios.
"""

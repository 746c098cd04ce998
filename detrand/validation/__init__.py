"""The validation of a migration: both programs are run and compared, and differences are explained.

What a user passes in:

- `migration`: `Migration` and `TrainStep`, and the checks of their arguments.
- `batches`: inputs and labels as arrays.
- `tolerances`: the tolerances that a user gives, by path; those that are measured are in `noise.floor`.
- `precision`: ports under a dtype policy, and the tolerance that follows from it.
- `migration_files`: the Python files with migrations that the command line runs.

From a migration to a report, from top to bottom:

- `validate`: runs all checks and makes the report.
- `checks` (a package): each check, and what it depends on. A new one goes into `checks.registry.CHECKS`, a run config
  that it needs into `reference.run_configs_of`.
- `outcomes` (a package): two outcomes are compared, and a difference is explained by findings.
- `runner`: runs either program once in each run config, pairs variables whose names differ, and finds where the
  programs diverge.
- `probe`: other inputs, where those of the migration do not show some faults.
- `reference`: where TF1's numbers come from: `programs.tf1`, or the answers of a golden file.
- `golden`: what a golden file holds; `comparison.structures` writes and reads it.
- `report`: the `Report` of a migration, with its verdict and its findings, each once.
- `results`: what a report holds: the results of checks, their findings, and the audit.
- `event_files`: the numbers of both programs for TensorBoard.

Packages:

- `programs`: runs either program once.
- `frameworks`: what a port needs of the framework on which it runs.
- `training`: trains either program for several steps, and compares the steps.
- `noise`: how far TF1's outputs move by rounding.
- `diagnosis`: where the programs diverge, and the likely causes.
- `audit`: the hyperparameters of both programs.
"""

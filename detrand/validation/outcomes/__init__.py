"""The outcomes of both programs in one run config: they are compared, and a difference is explained.

- `comparison`: how far outputs and changed variables differ, and whether that is rounding.
- `findings`: what is reported of a cause, of a divergence, and of variables that differ.
- `explanation`: `compare_outcomes`, which compares two outcomes, and explains a difference by findings.
"""

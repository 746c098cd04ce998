"""Recorded training steps.

- `recorder`: `StepRecorder`, which keeps what each step computes, eagerly or in a ``tf.function``
- `comparison`: `compare_steps`, the `Tolerance` of values and steps, and the report of a comparison
"""

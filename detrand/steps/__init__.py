"""Recorded training steps.

- `recorder`: `StepRecorder`, which keeps what each step computes, eagerly or in a ``tf.function``.
- `comparison`: `compare_steps` for two recorders, the `Tolerance` of values and steps, and the report of a comparison.
  `validate` compares trainings in `validation.training.compare`.
"""

"""The op seed and run that each random op of a program takes. Pure Python, free of frameworks.

- `streams`: `Stream`, the op seeds of one program in order, shared by its threads; `RandomOp`, the record of an op.
- `cursors`: `Cursor`, a thread's position in a stream, which decides the op seed that comes next in steps (which cannot
  be nested), loops and traces; `governed`, which makes a replacement that calls the original where no stream governs
  the thread.
- `regions`: op nodes and regions: which executions of a step, loop or branch are further runs of the same ops.
- `callsite`: the line of the user's code that is running, that added an op to a graph, or that raised an exception.
"""

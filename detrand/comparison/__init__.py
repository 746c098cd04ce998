"""The comparison of nested structures of numbers from any framework. Only NumPy is imported.

- `values`: `compare` and its assertions; paths, reasons and the report.
- `closeness`: the measure of how far two arrays of one shape are apart.
- `leaves`: the parts and the numbers of a value of any framework.
- `metrics`: cosine similarity, top-k agreement and KL divergence.
- `structures`: structures as NumPy arrays, and in files.
"""

"""How far two structures of arrays are apart, once or step by step; only NumPy is imported."""

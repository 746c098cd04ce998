"""Migrations of models that other people published in Python packages for TensorFlow 1, unchanged.

Each file in `migrations` is what a user writes: it imports the model from its package, and calls the same code in a
session and in a Keras 3 layer. The packages are not installed. `python -m tests.third_party FOLDER` fetches them into
a folder, without their dependencies, and validates all migrations.
"""

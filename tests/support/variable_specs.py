"""A short way to write the specs of variables."""

from detrand import VariableSpec


def spec(*shape, dtype="float32", trainable=True):
    return VariableSpec(shape, dtype, trainable)

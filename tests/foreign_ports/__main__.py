"""Validate each pair as it was found and configured, and print a table; exit with 1 if a verdict is not expected."""

import pathlib

from tests.third_party.__main__ import run

# The checks that fail in each pair as it was found.
_OF_VARIABLES = ["initializers-match", "regularizers-match"]
_IN_TRAINING = [*_OF_VARIABLES, "random-training", "constant-mode"]
EXPECTED = {
    "bert_backbone": [],
    "inception_v3": _IN_TRAINING,
    "mobilenet_v1": [*_OF_VARIABLES, "random-training"],
    "mobilenet_v2": _IN_TRAINING,
    "resnet50_v1": [
        "variables-match",
        *_OF_VARIABLES,
        "constant-weights",
        "random-training",
        "constant-mode",
    ],
    "resnet50_v2": [*_OF_VARIABLES, "constant-weights", "random-training", "constant-mode"],
    "vgg16": _IN_TRAINING,
}


if __name__ == "__main__":
    locations, expected = {}, {}
    for file in sorted((pathlib.Path(__file__).parent / "migrations").glob("*.py")):
        for state in ("as_found", "configured"):
            locations[f"{file.stem}, {state.replace('_', ' ')}"] = f"{file}:{state}"
        expected[f"{file.stem}, as found"] = EXPECTED[file.stem]
    run("foreign_ports", locations, expected)

"""What every test needs before TensorFlow is imported."""

import os

# TensorFlow reads it once, when it is imported: errors only, not the notices about CPU features and missing GPUs.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

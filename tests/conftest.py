"""What every test needs before TensorFlow is imported."""

import os

# TensorFlow reads it once, when it is imported: errors only, not the notices about CPU features and missing GPUs.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

# For processes of their own: who imports it has two devices from then on, which a process may be too old for.
collect_ignore = ["support/replica_programs.py", "support/replicated_migrations.py"]

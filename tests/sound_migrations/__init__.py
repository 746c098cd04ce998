"""Sound ports of TF1 programs of many shapes, depths and ops, in which `detrand.validate` must find no fault.

The TF1 programs are in the idioms of 2016 to 2018. The ports are what an engineer writes today: Keras layers, and
TensorFlow ops where there is no layer. `MIGRATIONS` holds all of them by name.
"""

from __future__ import annotations

from tests.sound_migrations import dense_networks, image_networks, sequence_networks

MIGRATIONS = {
    migration.name: migration
    for module in (dense_networks, image_networks, sequence_networks)
    for migration in module.MIGRATIONS
}

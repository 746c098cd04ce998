"""Sound ports of TF1 programs, of many shapes, depths and ops: `detrand.validate` must find nothing in any of them.

The TF1 programs are in the idioms of 2016 to 2018, the ports are what an engineer writes today: Keras layers, and where
there is none, TensorFlow ops. `MIGRATIONS` holds them all by name.
"""

from __future__ import annotations

from tests.sound_migrations import dense_networks, image_networks, sequence_networks

MIGRATIONS = {
    migration.name: migration
    for module in (dense_networks, image_networks, sequence_networks)
    for migration in module.MIGRATIONS
}

"""The one room that knows private names of TensorFlow and Keras, and that replaces what is theirs.

`patches` replaces functions, checked and reversibly; `tensorflow`, `random_ops` and `keras` name what is replaced, and
answer what has no public function. What other modules need of these four is an attribute of this package.
`function_traces` knows how a ``tf.function`` is traced, `xla` what is compiled.

`tf1_program` lets TF1 code find the bookkeeping of a fresh graph: `tf1_state` is what a program has noted so far,
`tf1_graphs` where it notes it, `tf1_dispatchers` what works otherwise in a program than outside of one.
"""

from detrand._patching.keras import *
from detrand._patching.optimizer_slots import *
from detrand._patching.patches import *
from detrand._patching.random_ops import *
from detrand._patching.strategies import *
from detrand._patching.tensorflow import *

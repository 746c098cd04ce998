"""The one room that knows private names of TensorFlow and Keras, and that replaces what is theirs.

`patches` replaces functions, checked and reversibly; `tensorflow` and `keras` name what is replaced, and answer
what has no public function; `tf1_program` lets TF1 code find the bookkeeping of a fresh graph. What other modules
need of the first three is an attribute of this package.
"""

from detrand._patching.keras import *
from detrand._patching.patches import *
from detrand._patching.tensorflow import *

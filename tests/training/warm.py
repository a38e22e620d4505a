"""Last action of the server of ranks, once it has loaded all modules to fork (see ranks.py)."""

import gc
from pathlib import Path

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from gpu_fleet.core import user_code

# Every export asks for these: a thousand regular expressions, a tenth of a second to compile.
get_checkpoint_conversion_mapping("llama")
# Every run of own code asks which of these modules are installed, and remembers it.
user_code.files(Path())
# A rank's own collector would else look at half a million objects, and copy each page that holds one.
gc.collect()
gc.freeze()

"""transformers' numbers of config.json files, a line each, or why not.  Runs in envs/transformers.

python readings.py FOLDER...          with scripts/ in PYTHONPATH
"""

import json
import sys
from pathlib import Path

from ingot.base.refused import Refused
from ingot.parity import transformers_model

for folder in sys.argv[1:]:
    try:
        print(json.dumps(transformers_model.reading(Path(folder, "config.json"))))
    except Refused as reason:
        print(json.dumps(str(reason)))

"""`model_uri`: the model that an argument of the command line names; `OWNER/NAME` is a model on the Hub.

Engines, files and objects of a cluster take full URIs alone: only people at a terminal type the short form.
"""

import os.path
import re

_ON_HUB = re.compile(r"\w[\w.-]*/[\w.-]+(?<!\.yaml)(?<!\.yml)(?<!\.json)(@[\w./-]+)?", re.ASCII)


def model_uri(argument: str) -> str:
    """Return the URI hf://OWNER/NAME for an argument OWNER/NAME that is no path here, else the argument."""
    if "://" in argument or os.path.exists(argument) or os.path.isdir(os.path.dirname(argument)):
        return argument
    return f"hf://{argument}" if _ON_HUB.fullmatch(argument) else argument

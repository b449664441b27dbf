"""Recurrent states of two prompts: how far apart they are, and an answer from a state that was emptied.

The attention pages of the prompt stay, so a model with attention may recall what the state forgot.
"""

import numpy as np

from mambaserve import LLM

with LLM("builtin://tiny-recall", page_size=1) as llm:
    red = llm.state("lamp: red\nkey: iron\nboat: blue\n")
    green = llm.state("lamp: green\nkey: iron\nboat: blue\n")
    print("distance by layer:", [round(float(distance), 3) for distance in red.distances(green)])

    empty = red
    for layer in range(len(red.distances(green))):
        empty = empty.with_recurrent(layer, np.zeros(red.shape, np.float32))
    for name, state in {"as computed": red, "without recurrent memory": empty}.items():
        [answer] = llm.generate_from(state, "What is the lamp?", max_tokens=6, temperature=0)
        print(f"{name}: {answer.text!r}")

"""Objects of given classes that are alive in this process."""

import gc
from collections.abc import Iterable
from typing import Any


def living(*kinds: type, besides: Iterable[object] = ()) -> list[Any]:
    """Return the living objects of `kinds` and of their subclasses, without the objects in `besides`.

    The function looks at the type of each object alone: `isinstance` also asks for the attribute `__class__`,
    and some libraries keep objects that warn about every attribute (`torch.distributed.reduce_op`).
    """
    gc.collect()
    known = {id(each) for each in besides}
    return [each for each in gc.get_objects() if issubclass(type(each), kinds) and id(each) not in known]

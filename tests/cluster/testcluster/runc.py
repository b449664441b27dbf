"""The runtime of a test node: runc, which gives the machine's folders to the containers that ask for them.

Images with `HOST_VIEW` in their environment have nothing but empty folders, over which the machine's own are
mounted. All others run as they are. A pod's template looks the same either way.

containerd starts this file instead of runc, with its arguments; `MOUNTS` lies beside it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HOST_VIEW = "TESTCLUSTER_HOST_VIEW=1"
MOUNTS = "host-mounts.json"


def with_mounts(spec: dict[str, Any], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the container's specification with `mounts`, if it requests them.

    They come before the first mount of the pod's own, which wins where they meet.
    """
    if HOST_VIEW not in spec["process"].get("env", ()):
        return spec
    all_mounts = spec["mounts"]
    own = next((at for at, mount in enumerate(all_mounts) if mount.get("type") == "bind"), len(all_mounts))
    return {**spec, "mounts": [*all_mounts[:own], *mounts, *all_mounts[own:]]}


def main() -> None:
    arguments = sys.argv[1:]
    if "create" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1], "config.json")
        mounts = json.loads(Path(__file__).with_name(MOUNTS).read_text())
        path.write_text(json.dumps(with_mounts(json.loads(path.read_text()), mounts)))
    os.execvp("runc", ["runc", *arguments])


if __name__ == "__main__":
    main()

"""Installs the Debian packages that a test node needs and this machine lacks; run by `make e2e` and CI.

Does nothing when all programs are there, wherever they came from. Says what to do when it may not install.
"""

import os
import shutil
import subprocess
import sys

from testcluster.container_runtime import missing_packages


def main() -> int:
    packages = missing_packages()
    if not packages:
        return 0
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(
            "error: a test node needs programs that are missing here. As root on Debian: "
            f"{' '.join(install)}; elsewhere install what these packages hold.",
            file=sys.stderr,
        )
        return 1
    print(f"cluster: installing {' '.join(packages)}", file=sys.stderr, flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], install):
        if code := subprocess.run(command, env=environ, stdout=sys.stderr).returncode:
            return code
    if left := missing_packages():
        print(f"error: still missing after the installation: {' '.join(left)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

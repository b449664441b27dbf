"""`write_platform_wheel`: the wheel once more, with the compiled C++ kernels in it. `build` calls it.

Without them the first engine compiles the kernels, which takes longer than all else until the first token and
needs a compiler. The wheel of all platforms stays beside it, for clients on other systems. Never compiles
anything itself.
"""

import base64
import hashlib
import re
import zipfile
from pathlib import Path

from release.errors import CannotRelease

SHIPPED = "mamba_kernels/cpu/shipped"
"""Folder of the library in a wheel."""
_ANY = "py3-none-any"
_OLDEST = 17
"""Minor version of the glibc that every installer of manylinux wheels knows."""


def write_platform_wheel(wheel: Path, library: Path) -> Path:
    """Write a wheel with the library beside the wheel of all platforms, and return its path.

    The name of the new wheel has the version of the glibc that the library needs, so pip chooses it where the
    library can be loaded, and the other wheel elsewhere. The same input gives the same bytes.

    Raises CannotRelease for a library that needs a C++ runtime of the machine.
    """
    tag = _ANY.replace("any", platform_of(library.read_bytes()))
    target = wheel.with_name(wheel.name.replace(_ANY, tag))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        entries = {entry.filename: entry for entry in source.infolist()}
        [about] = [name for name in entries if name.endswith(".dist-info/WHEEL")]
        [record] = [name for name in entries if name.endswith(".dist-info/RECORD")]
        contents = {name: source.read(name) for name in entries}
        contents[about] = (
            contents[about].replace(_ANY.encode(), tag.encode())
            .replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
        )  # fmt: skip
        added = f"{SHIPPED}/{library.name}"
        contents[added] = library.read_bytes()
        lines = [line for line in contents[record].decode().splitlines() if not line.startswith(f"{about},")]
        at = next((i for i, line in enumerate(lines) if line.startswith(f"{record},")), len(lines))
        lines[at:at] = [_record_line(name, contents[name]) for name in (added, about)]
        contents[record] = "".join(f"{line}\n" for line in lines).encode()
        # Installers read RECORD last, and the wheel has it there.
        for name in (*(each for each in contents if each not in (record, added)), added, record):
            info = zipfile.ZipInfo(name, entries[record].date_time)
            info.external_attr = (entries[name] if name in entries else entries[about]).external_attr
            info.compress_type = zipfile.ZIP_DEFLATED
            copy.writestr(info, contents[name])
    return target


def platform_of(library: bytes) -> str:
    """Return the platform that a library needs, such as manylinux_2_34_x86_64. Raises CannotRelease."""
    if re.search(rb"\0(?:GLIBCXX|CXXABI)_[\d.]+\0", library):
        raise CannotRelease("the library of the kernels needs a C++ runtime: it is built without --ship")
    minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", library)]
    return f"manylinux_2_{max(minors, default=_OLDEST)}_x86_64"


def _record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"

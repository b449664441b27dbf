"""`make release`: builds everything that a release publishes into dist/, from the files that git has.

There are two wheels: one for all platforms, and one for Linux on x86-64 that has the compiled kernels.

The files are copied, stamped with the version and built in a folder of their own. They appear in dist/ at the
end, beside SHA256SUMS, or not at all. Two runs for one commit write the same bytes; image archives, which
`--images` adds, are the exception: they contain Debian's packages of the day.
"""

import argparse
import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from release.bill import bill_of_materials
from release.chart_archive import pack_chart
from release.checkout import copy_files, declared_version, read_checkout
from release.errors import CannotRelease
from release.notes import release_notes
from release.packages import build_packages, run_program
from release.platform_wheel import write_platform_wheel
from release.stamp import stamp
from release.version import Checkout, is_release, tag_of, version_of

ROOT = Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"
IMAGES = {"control": "mambaserve-control-plane", "server": "mambaserve"}
"""Target of the image builder -> name of the archive."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release while it is built."""

    sources: Path
    """The stamped copy of the checkout."""
    output: Path
    """Folder of the files."""
    version: str
    checkout: Checkout

    @property
    def tag(self) -> str:
        """The version in names of images and charts."""
        return tag_of(self.version)

    @property
    def chart(self) -> Path:
        """The packed chart."""
        return self.output / f"mambaserve-{self.tag}.tgz"


def build(
    root: Path,
    dist: Path,
    *,
    library: bool = True,
    images: bool = False,
    charts: str = "",
    plain_http: bool = False,
) -> str:
    """Build the release of the checkout at `root` into `dist` and return its version.

    Args:
        root: the checkout.
        dist: folder of the files; those of an earlier release are removed.
        library: whether there is a second wheel with the compiled kernels, for Linux on x86-64.
        images: whether archives of the two images are built, which takes minutes and needs root.
        charts: registry to which the chart is pushed at the end, as oci://HOST/PATH; empty = none.
        plain_http: whether that registry speaks HTTP without TLS.

    Raises CannotRelease.
    """
    checkout = read_checkout(root)
    version = version_of(checkout, declared_version(root))
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = release_notes(changelog, version, released=is_release(version))
    helm = _helm(charts, checkout) if charts else ""
    with _alone(dist), tempfile.TemporaryDirectory(prefix=".release-", dir=dist) as folder:
        release = Release(Path(folder, "sources"), Path(folder, "files"), version, checkout)
        release.output.mkdir()
        copy_files(root, release.sources)
        stamp(release.sources, version)
        build_packages(release.sources, release.output, checkout.seconds)
        if library:
            _library_wheel(release)
        pack_chart(release.sources / "charts/mambaserve", release.chart, checkout.seconds)
        _manifests(release)
        bill = bill_of_materials(release.sources / "requirements", version, checkout.seconds)
        (release.output / f"mambaserve-{version}.cdx.json").write_text(bill, encoding="utf-8")
        (release.output / f"release-notes-{version}.md").write_text(notes, encoding="utf-8")
        if images:
            _images(release)
        _sums(release.output)
        _publish(release.output, dist)
        if helm:
            option = ["--plain-http"] if plain_http else []
            run_program([helm, "push", str(dist / release.chart.name), charts, *option], dist)
    return version


@contextmanager
def _alone(dist: Path) -> Iterator[None]:
    """Create the folder, and keep a second run for it waiting."""
    dist.mkdir(parents=True, exist_ok=True)
    with (dist / ".release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _manifests(release: Release) -> None:
    """Write the objects of `kubectl apply -k manifests` into one file, and the CRDs into another."""
    folder = release.sources / "manifests"
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("namespace.yaml", "mambaserve.yaml")]
    (release.output / f"mambaserve-{release.tag}.yaml").write_text("---\n".join(texts), encoding="utf-8")
    kinds = [path.read_text(encoding="utf-8") for path in sorted((release.sources / "crds").glob("*.yaml"))]
    crds = "".join(text if text.startswith("---") else f"---\n{text}" for text in kinds)
    (release.output / f"mambaserve-crds-{release.tag}.yaml").write_text(crds, encoding="utf-8")


def _library_wheel(release: Release) -> None:
    """Compile the C++ kernels of the sources and write the wheel that has them."""
    kernels = release.sources / "kernels"
    program = [sys.executable, "-m", "mamba_kernels.cpu.build", "--ship"]
    variables = {"PYTHONPATH": str(kernels), "PYTHONDONTWRITEBYTECODE": "1"}
    library = Path(run_program(program, kernels, variables).splitlines()[-1])
    [wheel] = release.output.glob("*-none-any.whl")
    write_platform_wheel(wheel, library)
    # The images compile their own, for the same sources as without this wheel.
    shutil.rmtree(library.parent)


def _images(release: Release) -> None:
    for target, name in IMAGES.items():
        archive = release.output / f"{name}-{release.tag}.oci.tar"
        printed = run_program([sys.executable, "-m", "images.build", target], release.sources, shown=True)
        built = Path(printed.splitlines()[-1])
        shutil.copyfile(built, archive)
        # With `.oci` in its name, which the bill of the packages has not.
        shutil.copyfile(built.with_suffix(".cdx.json"), archive.with_suffix(".cdx.json"))


def _sums(folder: Path) -> None:
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _helm(charts: str, checkout: Checkout) -> str:
    """Return the program that pushes the chart. Raises CannotRelease before anything is built."""
    if not charts.startswith("oci://"):
        raise CannotRelease(f"{charts}: charts are pushed to a registry: write oci://HOST/PATH")
    if checkout.changed:
        raise CannotRelease("files differ from the commit: commit them before a chart is pushed")
    helm = shutil.which("helm")
    if helm is None:
        raise CannotRelease("helm is missing, which pushes the chart: install it, or leave --charts out")
    return helm


def _publish(folder: Path, dist: Path) -> None:
    """Replace the files of an earlier release by those in `folder`, the checksums last."""
    sums = dist / SUMS
    if sums.is_file():
        names = {line.partition("  ")[2] for line in sums.read_text(encoding="utf-8").splitlines()}
        sums.unlink()
        for name in names:
            if name and "/" not in name:
                (dist / name).unlink(missing_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SUMS):
        path.replace(dist / path.name)


def main() -> int:
    """Build the release of this checkout; the exit code is 1 where it cannot be built."""
    parser = argparse.ArgumentParser(
        prog="python -m release.build", description="Build a release into dist/."
    )
    parser.add_argument(
        "--images", action="store_true", help="archives of the images, too; needs root on Linux"
    )
    parser.add_argument(
        "--without-library", action="store_true",
        help="leave out the wheel with the compiled kernels, which needs g++ and a minute of two cores",
    )  # fmt: skip
    parser.add_argument("--charts", default="", metavar="oci://HOST/PATH", help="push the chart there")
    parser.add_argument("--plain-http", action="store_true", help="that registry speaks HTTP without TLS")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder of the files; default: dist"
    )
    options = parser.parse_args()
    try:
        version = build(
            ROOT, options.output.resolve(), library=not options.without_library, images=options.images,
            charts=options.charts, plain_http=options.plain_http,
        )  # fmt: skip
    except (CannotRelease, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print((options.output / SUMS).read_text(encoding="utf-8"), end="")
    print(f"built {version} in {options.output}: sha256sum -c {SUMS} compares")
    return 0


if __name__ == "__main__":
    sys.exit(main())

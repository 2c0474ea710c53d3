"""What pyproject.toml cannot say: the kernels' library carries the digest of its sources."""

from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_ext import build_ext

NATIVE = Path(__file__).parent / "src" / "sluice" / "native"


class BuildKernels(build_ext):
    """Compiles the kernels whenever it is asked to: times of files do not show which sources a library has."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True

    def build_extension(self, ext) -> None:
        digest = run_path(str(NATIVE / "sources.py"))["digest_of"](NATIVE)
        ext.define_macros.append(("SLUICE_SOURCES", f'"{digest}"'))
        super().build_extension(ext)


setup(cmdclass={"build_ext": BuildKernels})

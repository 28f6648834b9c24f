# A recipe for Spack: spack repo add scripts/package/spack; spack dev-build -d . trireme@develop
from spack.package import *


class Trireme(CMakePackage, CudaPackage):
    """Trains large language models with tensor, pipeline and data parallelism from one YAML file."""

    license("Apache-2.0")
    version("develop")

    variant("cuda", default=False, description="Train on GPUs")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("mpi")
    depends_on("onednn@2.6:")
    depends_on("yaml-cpp@0.7:")
    depends_on("nlohmann-json@3.11:")
    depends_on("cli11@2.1:")
    depends_on("xxhash")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("libsodium")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl", when="+cuda")

    def cmake_args(self):
        args = [
            self.define_from_variant("TRIREME_CUDA", "cuda"),
            self.define("TRIREME_MPI", True),
            self.define("TRIREME_FETCH", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

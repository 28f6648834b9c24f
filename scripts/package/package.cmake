# Packages by CPack: a .deb whose dependencies are read from the binary, and a .tar.zst. scripts/package.sh calls it with the version of git.
set(CPACK_GENERATOR DEB TZST)
set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_VENDOR "The Trireme authors")
set(CPACK_PACKAGE_CONTACT "The Trireme authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trainer of large language models with tensor, pipeline and data parallelism")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)     # mpirun, which `trireme train` starts
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openssh-client)  # for ranks on several hosts without a scheduler
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "One executable that trains from one YAML file, under mpirun or Slurm.
The CUDA libraries are loaded when a GPU is first used, and are not dependencies.")
include(CPack)

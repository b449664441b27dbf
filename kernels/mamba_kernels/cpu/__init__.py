"""C++ kernels for x86 CPUs, called through ctypes. `dispatch.backend` decides whether they compute."""

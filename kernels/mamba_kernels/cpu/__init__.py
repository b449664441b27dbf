"""Kernels in C++ for x86 CPUs, reached through ctypes. `backend` says whether they compute; see README.md."""

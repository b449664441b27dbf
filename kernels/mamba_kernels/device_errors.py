"""Classification of CUDA errors: the device is lost, lacks memory, or refused a single call.

The decision reads the message alone, since torch, Triton's launcher and NVIDIA's libraries each report in
their own form and with their own exceptions. Called by operators, which may leave a kernel out, and by the
engine.
"""

import re

_REPORT = re.compile(r"CUDA (?:driver )?error: |Triton Error \[CUDA\]: |cuDNN error: ")
"""First words of an error: of torch, of driver calls inside torch and of cuBLAS; of Triton; of cuDNN."""
_MEMORY = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*ALLOC(?:ATION)?_FAILED")
_REFUSAL = re.compile(
    r"invalid argument|invalid configuration argument|invalid resource handle|invalid device function"
    r"|too many resources requested|too many blocks in cooperative launch|named symbol not found"
    r"|no kernel image is available|kernel image is invalid|PTX|operation not supported"
    r"|operation not permitted|captur"
    r"|CUBLAS_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH|NOT_INITIALIZED)"
    r"|CUDNN_STATUS_(?:NOT_SUPPORTED|BAD_PARAM|NOT_INITIALIZED|ARCH_MISMATCH)"
)
"""Words of errors that concern one call only, so that the next call may succeed. They include calls that are
not permitted in a capture or broke one, and a cuBLAS or cuDNN without memory for its initialization."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether the device had too little memory for a request; smaller requests may succeed."""
    return type(error).__name__ == "OutOfMemoryError" or _MEMORY.search(str(error)) is not None


def ends_the_device(error: BaseException) -> bool:
    """Return whether nothing will run on the device any more in this process.

    CUDA errors persist for the life of a process, except a lack of memory and refusals of a single call. An
    error that is not listed here counts as persistent: a process that continues in vain costs more than a
    restart.
    """
    report = _REPORT.search(str(error))
    if report is None or lacks_memory(error):
        return False
    # After the first line torch adds advice, whose words do not describe this error.
    message = str(error)[report.end() :].partition("\n")[0]
    return _REFUSAL.search(message) is None

"""What an error says of a CUDA device: that it is lost, that it lacks memory, or that it refused one call.

Decided by the words alone, since torch, Triton's launcher and NVIDIA's libraries each report in their own
form and with exceptions of their own. Read by operators, which may leave a kernel out, and by the engine.
"""

import re

_REPORT = re.compile(r"CUDA (?:driver )?error: |Triton Error \[CUDA\]: |cuDNN error: ")
"""How torch, the driver's calls inside torch and cuBLAS begin; Triton's launcher; cuDNN."""
_MEMORY = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*ALLOC(?:ATION)?_FAILED")
_REFUSAL = re.compile(
    r"invalid argument|invalid configuration argument|invalid resource handle|invalid device function"
    r"|too many resources requested|too many blocks in cooperative launch|named symbol not found"
    r"|no kernel image is available|kernel image is invalid|PTX|operation not supported"
    r"|operation not permitted|captur"
    r"|CUBLAS_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH|NOT_INITIALIZED)"
    r"|CUDNN_STATUS_(?:NOT_SUPPORTED|BAD_PARAM|NOT_INITIALIZED|ARCH_MISMATCH)"
)
"""Words of errors that concern the call that met them: the next one may succeed. What is not permitted in a
capture, or broke one, is among them; so is a cuBLAS or cuDNN that found no memory to begin with."""


def lacks_memory(error: BaseException) -> bool:
    """Tell whether the device had no memory for what was asked: with less, work goes on."""
    return type(error).__name__ == "OutOfMemoryError" or _MEMORY.search(str(error)) is not None


def ends_the_device(error: BaseException) -> bool:
    """Tell whether nothing will run on the device any more in this process.

    CUDA errors stick to a process, all but want of memory and refusals of a single call. An error that is not
    known here counts as one that sticks: the process that goes on in vain costs more than a new one.
    """
    report = _REPORT.search(str(error))
    if report is None or lacks_memory(error):
        return False
    # Behind its first line torch adds advice, whose words say nothing of this error.
    message = str(error)[report.end() :].partition("\n")[0]
    return _REFUSAL.search(message) is None

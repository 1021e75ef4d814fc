"""Whose a library is, by its path, and what of torch's computes, by the names of its functions.

Torch's libraries also allocate and copy, which a candidate may ask for. So their functions are told apart by name: what
computes (BLAS, convolutions, elementwise kernels) is nobody's business.
"""

from __future__ import annotations

import re

RUNTIMES = re.compile(r"(libc|libm|libmvec|libgcc_s|libstdc\+\+|libpthread|ld-linux[^/]*)[.-][^/]*$|\[vdso\]")
WAITING = re.compile(r"/libgomp[^/]*$")
"""Threads without work turn in circles there; what they compute lies elsewhere."""
NO_FILES = ("[heap]", "[stack]", "[anon", "/memfd:", "/dev/zero")
TORCH = re.compile(r"/libtorch_cpu|libmkl|libdnnl|libopenblas|/numpy")
"""What can compute; libtorch_python and libc10 are overhead, as Python is."""
ONLY_COMPUTES = re.compile(r"/lib(mkl|dnnl|(scipy_)?openblas)")
_SERVICE = "serv|set|get|domain|thread|enable|disable|malloc|calloc|realloc|free|mem|peak|cbwr|verbose|exit|finalize"
"""Of MKL: torch sets the number of threads in every thread that copies."""
COMPUTES = re.compile(
    rf"^_?mkl_(?!{_SERVICE})|^(cblas|nnp|xnn|dnnl)_|^[sdcz]gem[mv]|4dnnl|7qnnpack|11arm_compute|Sleef_"
    r"|6fbgemm(?!\w*(Float|transpose|Support|InstructionSet|ForceIsa|is[YZ]mm))|2at6native(6AVX512|4AVX2|7DEFAULT|\d+SVE|7cpublas)(?!.*(copy|fill|zero))",
    re.IGNORECASE,
)
"""Names, as the linker knows them, of functions that no allocation, view or copy comes to."""


def has_no_file(path: str) -> bool:
    """Code there is generated: no linker has put it into a file."""
    return not path or path.startswith(NO_FILES) or path.endswith(" (deleted)")

"""Kernels whose source includes headers of the client's own: only the client has the folders of ``-I``."""

import pytest

KERNEL = """
#include "scale.h"  // and what comes behind
#include <nested/offset.h>
/* #include "missing_in_a_comment.h" */
extern "C" __global__ void run(float* x) {
    x[threadIdx.x] = scaled(x[threadIdx.x]) + OFFSET;
}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nested").mkdir()
    (tmp_path / "scale.h").write_text(
        '#pragma once\n#include "nested/offset.h"\n__device__ float scaled(float x) { return x * FACTOR; }\n'
    )
    (tmp_path / "nested" / "offset.h").write_text(
        '#ifndef OFFSET\n#define OFFSET 5\n#include "factor.h"\n#include "../scale.h"\n#endif\n'
    )
    (tmp_path / "nested" / "factor.h").write_text("#define FACTOR 3\n")
    return tmp_path


def test_a_kernel_includes_headers_of_the_clients(cp, folder):
    for options in ((f"-I{folder}",), ("-I", str(folder)), (f"--include-path={folder}", "-DNDEBUG")):
        x = cp.arange(4, dtype="f4")
        cp.RawKernel(KERNEL, "run", options)((1,), (4,), (x,))
        assert x.tolist() == [5, 8, 11, 14]
    module = cp.RawModule(code=KERNEL, options=(f"-I{folder}",))
    x = cp.arange(4, dtype="f4")
    module.get_function("run")((1,), (4,), (x,))
    assert x.tolist() == [5, 8, 11, 14]


def test_preambles_include_them_too(cp, folder):
    options = {"preamble": '#include "scale.h"', "options": (f"-I{folder}",)}
    double = cp.ElementwiseKernel("float32 x", "float32 y", "y = scaled(x)", "scaled_by", **options)
    assert double(cp.arange(3, dtype="f4")).tolist() == [0, 3, 6]
    total = cp.ReductionKernel("float32 x", "float32 y", "scaled(x)", "a + b", "y = a", "0", "scaled_sum", **options)
    assert float(total(cp.arange(4, dtype="f4"))) == 18


def test_what_the_compiler_says_names_the_clients_lines(cp, folder):
    wrong = KERNEL.replace("scaled(x", "unscaled(x")
    with pytest.raises(cp.cuda.compiler.CompileException, match=r"kernel\.cu:6"):
        cp.RawKernel(wrong, "run", (f"-I{folder}",)).compile()
    with pytest.raises(cp.cuda.compiler.CompileException, match=r"mine\.cu:6"):
        cp.RawKernel('#line 2 "mine.cu"' + wrong, "run", (f"-I{folder}",)).compile()
    (folder / "nested" / "factor.h").write_text("#define FACTOR 3\nint wrong = ;\n")
    with pytest.raises(cp.cuda.compiler.CompileException, match=r"factor\.h:2"):
        cp.RawKernel(KERNEL, "run", (f"-I{folder}", "-DOTHER")).compile()


def test_a_header_that_is_nowhere_is_the_compilers_to_refuse(cp, folder):
    with pytest.raises(cp.cuda.compiler.CompileException, match="absent"):
        cp.RawKernel('#include "absent.h"\n' + KERNEL, "run", (f"-I{folder}",)).compile()


def test_toolkits_have_their_headers_at_the_server(cp, folder):
    (folder / "cuda_runtime.h").write_text("#error CUDA's own of the client\n")
    source = '#include <cuda_runtime.h>\nextern "C" __global__ void one(int* x) { *x = 1; }'
    x = cp.zeros(1, "i4")
    cp.RawKernel(source, "one", (f"-I{folder}",))((1,), (1,), (x,))
    assert x.tolist() == [1]

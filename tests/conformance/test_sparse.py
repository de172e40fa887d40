"""Sparse matrices where CuPy's differ from SciPy's: indices of 64 bits, what is known of them, formats, solvers."""

import pickle
import warnings

import numpy as np
import pytest

import rgpu as cp
import rgpu.cupyx.cusparse
from rgpu import cupyx

pytest.importorskip("scipy")
pytestmark = pytest.mark.timeout(60)
WIDE = 2**31 + 1


@pytest.fixture(scope="module", autouse=True)
def server():
    """One embedded server for the module; it checks every predicted layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGPU_CHECK_PREDICTION", "1")
        cp.connect("local")
        yield
        cp.close()


def wide(columns, extent=WIDE + 1):
    """A csr matrix of one element in each row, its indices of 64 bits."""
    places = cp.array(columns, dtype=np.int64)
    parts = cp.arange(1.0, places.size + 1), places, cp.arange(places.size + 1, dtype=np.int64)
    return cupyx.scipy.sparse.csr_matrix(parts, shape=(places.size, extent))


def test_indices_of_64_bits_stay_and_no_operation_needs_memory_for_each_column():
    sparse, a = cupyx.scipy.sparse, wide([0, WIDE])
    assert a.indices.dtype == a.indptr.dtype == np.int64
    assert (a + a).tocoo().col.get().tolist() == [0, WIDE]
    picked = a[:, [WIDE, 0, WIDE]]
    assert picked.toarray().get().tolist() == [[0, 1, 0], [2, 0, 2]] and picked.indices.dtype == np.int64
    product = sparse.csr_matrix(cp.array([[1.0, 2.0]])) @ a
    product.sort_indices()
    assert product.indices.get().tolist() == [0, WIDE] and product.data.get().tolist() == [1, 4]
    assert (a > 1.5).nnz == 1 and float(a[1, WIDE]) == 2
    assert sparse.dia_matrix((cp.ones((1, 2)), cp.array([0])), shape=(WIDE, 2)).tocsc().nnz == 2


def test_matrices_narrow_what_fits_and_arrays_do_not():
    sparse = cupyx.scipy.sparse
    parts = cp.ones(2), cp.array([0, 1]), cp.array([0, 1, 2])
    assert sparse.csr_matrix(parts).indices.dtype == np.int32
    array = sparse.csr_array(parts)
    assert array.indices.dtype == array.T.tocsr().indices.dtype == (array + array).indices.dtype == np.int64
    with pytest.raises(ValueError, match="int64"):
        sparse.linalg.spsolve(array, cp.ones(2))
    with pytest.raises(ValueError, match="last index pointer"):
        sparse.csr_matrix((cp.ones(1), cp.array([0]), cp.array([0, 3])))


def test_what_is_known_of_the_indices_goes_with_them():
    sparse = cupyx.scipy.sparse
    a = sparse.csr_matrix(cp.array([[1.0, 0, 2], [0, 3, 0]]))
    assert "_has_canonical_format" not in vars(a[0:1])
    assert a.has_canonical_format and a.has_sorted_indices
    for b in (a.copy(), -a, a.T, a[cp.array([1, 0])], a[:, 0:2], a.tocsc()):
        assert vars(b)["_has_canonical_format"] is True
    assert a.tocoo().has_canonical_format and not a.tocoo().T.has_canonical_format
    a.indices = cp.array([2, 0, 1], dtype=np.int32)
    a.has_canonical_format = a.has_sorted_indices = False
    a.sort_indices()
    assert a.toarray().get().tolist() == [[2, 0, 1], [0, 3, 0]]


def test_refusals_and_warnings_are_cupys():
    sparse, dense = cupyx.scipy.sparse, cp.array([[1.0, 0], [0, 2]])
    matrix, array = sparse.csr_matrix(dense), sparse.csr_array(dense)
    for refused in (lambda: array**0, lambda: matrix.power(0), matrix.todia):
        with pytest.raises(NotImplementedError):
            refused()
    assert (matrix**0).toarray().get().tolist() == np.eye(2).tolist() and isinstance(matrix**0, sparse.csr_matrix)
    with pytest.raises(ValueError, match="integer"):
        matrix**2.5
    with pytest.warns(sparse.SparseEfficiencyWarning, match="csr_matrix"):
        matrix[0, 1] = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix[0, 1] = 6  # it is there now
    assert matrix.getcol(0).format == matrix.tocsc().getrow(0).format == "csr"
    assert matrix.tocsc().getcol(0).format == "csc"
    assert matrix[[3]].toarray().get().tolist() == [[0, 2]]  # positions count from the start again
    truths = sparse.coo_array((cp.array([True, True]), (cp.array([0, 0]), cp.array([1, 1]))), shape=(2, 3))
    assert truths.sum(axis=0).get().tolist() == [0, 1, 0] and truths.nnz == 2


def test_solvers_by_iterations():
    linalg = cupyx.scipy.sparse.linalg
    rng = np.random.default_rng(1)
    dense = rng.random((12, 12))
    dense = dense + dense.T + 12 * np.eye(12)
    A, b, seen = cp.array(dense), cp.array(rng.random(12)), []
    M = cp.array(np.diag(1 / np.diag(dense)))
    for options in ({}, {"M": M}, {"x0": b}, {"shift": 0.5}):
        x, info = linalg.minres(A, b, tol=1e-10, callback=seen.append, **options)
        exact = np.linalg.solve(dense - options.get("shift", 0) * np.eye(12), b.get())
        assert info == 0 and seen
        np.testing.assert_allclose(x.get(), exact, rtol=1e-6)
    values, vectors = linalg.eigsh(A, k=1)
    again, close = linalg.eigsh(A, k=1, v0=vectors[:, 0], ncv=3, maxiter=0)  # nothing left to do
    np.testing.assert_allclose(again.get(), values.get(), rtol=1e-10)
    assert abs(float(cp.vdot(close[:, 0], vectors[:, 0]))) > 1 - 1e-9
    assert linalg.spsolve(cupyx.scipy.sparse.csr_matrix(A), cp.ones((12, 2))).flags.f_contiguous


def test_cusparse_by_name():
    from rgpu.cupyx import cusparse

    sparse = cupyx.scipy.sparse
    a = sparse.csr_matrix(cp.array([[1.0, 0], [2, 3]]))
    assert cusparse.check_availability("spmv") and not cusparse.check_availability("csrsm2")
    assert cusparse.spgeam(a, a, 2, 3).toarray().get().tolist() == [[5, 0], [10, 15]]
    assert cusparse.spgemm(a, a, alpha=2).toarray().get().tolist() == [[2, 0], [16, 18]]
    y = cp.ones(2)
    assert cusparse.spmv(a, cp.ones(2), y, alpha=2, beta=3) is y and y.get().tolist() == [5, 13]
    b = cp.array([[1.0, 2], [3, 4]], order="F")
    assert cusparse.spmm(a, b, alpha=2).get().tolist() == [[2, 4], [22, 32]]
    with pytest.raises(ValueError, match="Fortran"):
        cusparse.spmm(a, cp.array(b, order="C"))
    fewer = cusparse.csr2csr_compress(a, 1.0)
    assert fewer.toarray().get().tolist() == [[0, 0], [2, 3]] and fewer.nnz == 2
    x = cusparse.spsm(a, cp.array([[1.0], [8.0]]))
    assert x.get().ravel().tolist() == [1, 2]
    shuffled = sparse.coo_matrix((cp.array([2.0, 1]), (cp.array([1, 0]), cp.array([0, 1]))))
    cusparse.coosort(shuffled)
    assert shuffled.row.get().tolist() == [0, 1] and shuffled.data.get().tolist() == [1, 2]


def test_a_product_that_no_memory_can_hold_is_refused_without_counting_its_elements():
    """CuPy's test of spgemm: 10^10 elements of twice 2.5 10^6. SciPy counts them for minutes before it asks."""
    rows, inner = 400_000, 4
    full = cp.tile(cp.arange(inner, dtype=np.int32), rows)
    starts = cp.arange(0, rows * inner + 1, inner, dtype=np.int32)
    a = cupyx.scipy.sparse.csr_matrix((cp.ones(rows * inner, dtype=np.float32), full, starts), shape=(rows, inner))
    b = a.T.tocsr()
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cupyx.cusparse.spgemm(a, b)
    few = a[:3] @ b[:, :2]
    assert few.toarray().get().tolist() == [[inner] * 2] * 3
    assert (cupyx.scipy.sparse.csr_matrix((rows, inner)) @ b).nnz == 0


def test_descriptors_of_matrices_are_numbers_and_a_copy_is_a_new_one():
    one = cupyx.cusparse.MatDescriptor.create()
    other = pickle.loads(pickle.dumps(one))
    assert isinstance(one.descriptor, int) and isinstance(other.descriptor, int)
    assert one.descriptor != other.descriptor
    one.set_mat_type(cp.cuda.cusparse.CUSPARSE_MATRIX_TYPE_TRIANGULAR)
    one.set_mat_index_base(1)
    one.set_mat_fill_mode(1)
    with pytest.raises(cp.cuda.cusparse.CuSparseError) as caught:
        one.set_mat_diag_type(2)
    assert caught.value.status == 3
    gone = cp.cuda.cusparse.createMatDescr()
    cp.cuda.cusparse.destroyMatDescr(gone)
    with pytest.raises(cp.cuda.cusparse.CuSparseError):
        cp.cuda.cusparse.setMatType(gone, 0)


def test_indices_that_lead_outside_are_an_error_and_no_access():
    """SciPy's loops, and LAPACK's exchanges of rows, do not look: the worker would read or write beyond its arrays."""
    sparse, linalg = cupyx.scipy.sparse, cupyx.scipy.linalg
    far, ones = 1 << 26, cp.ones(4)
    rows, columns = cp.array([0, 2, 3, 4], "i"), cp.array([0, 1, 2, 0], "i")
    wild = rows * cp.array([0, far, 1, 1], "i")
    for indices, starts in ((columns * far, rows), (columns - far, rows), (columns, wild)):
        with pytest.raises(ValueError, match="ind"):
            (sparse.csr_matrix((ones, indices, starts), shape=(3, 3)) @ cp.ones(3)).get()
        with pytest.raises(ValueError, match="ind"):
            sparse.csc_matrix((ones, indices, starts), shape=(3, 3)).toarray().get()
    for pivots in ([0, far, 2], [0, -far, 2]):
        with pytest.raises(ValueError, match="pivots"):
            linalg.lu_solve((cp.eye(3), cp.array(pivots, "i")), cp.ones(3)).get()
    assert (sparse.csr_matrix((ones, columns, rows), shape=(3, 3)) @ cp.ones(3)).get().tolist() == [2, 1, 1]

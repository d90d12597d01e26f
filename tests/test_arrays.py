# SPDX-License-Identifier: MIT
"""Arrays of other libraries go in without a copy, or with a TypeError that says what to do."""

import gc
import weakref

import numpy as np
import pytest
from programs import run

import fastattn
from fastattn import _arrays

Q, K, V = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3))


class Exporter:
    """An array library of three methods: NumPy's own DLPack, with or without versions."""

    def __init__(self, array, versioned=True, device=(1, 0)):
        self.array, self.versioned, self.on = array, versioned, device

    def __dlpack_device__(self):
        return self.on

    def __dlpack__(self, **options):
        if not self.versioned and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**options)


class Copier(Exporter):
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options, copy=True)


class OnDevice(Exporter):
    device, dtype = "cuda:0", "torch.float32"


def tensors(rng, dtype=np.float32):
    return [rng.standard_normal(shape).astype(dtype) for shape in (Q, K, V)]


def address(array):
    return array.__array_interface__["data"][0]


# ---- import --------------------------------------------------------------------------------------


def test_import_needs_numpy_alone():
    done = run("""
        import sys, fastattn
        others = {"torch", "jax", "onnx", "transformers", "flash_attn", "ml_dtypes"}
        assert not others & set(sys.modules), others & set(sys.modules)
        assert {"torch", "transformers", "flash_attn"} <= set(dir(fastattn))
    """)
    assert done.returncode == 0, done.stderr


def test_memory_maps_import_nothing():
    """NumPy imports numpy.ma when it is first asked for: many times as long as a call."""
    done = run("""
        import os, sys, tempfile, numpy as np, fastattn
        folder = tempfile.TemporaryDirectory()
        q = np.memmap(os.path.join(folder.name, "q"), np.float32, mode="w+", shape=(2, 3))
        fastattn.attention(q, q, q)
        assert "numpy.ma" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.no_sanitizer
def test_adapters_are_attributes():
    pytest.importorskip("torch")
    done = run("import fastattn; fastattn.torch.attention; fastattn.flash_attn.flash_attn_func")
    assert done.returncode == 0, done.stderr


def test_parts_of_missing_libraries_are_no_attributes():
    done = run("""
        import inspect, sys
        import fastattn
        sys.modules |= dict.fromkeys(["jax", "torch", "transformers"])  # as if not installed
        assert "plot" in dict(inspect.getmembers(fastattn))
        assert not any(hasattr(fastattn, name) for name in ("jax", "torch", "transformers"))
        try:
            fastattn.jax
        except AttributeError as error:
            expected = "module 'fastattn' has no attribute 'jax' here: fastattn.jax needs jax: pip "
            assert str(error) == f"{expected}install 'fastattn[jax]'", error
            assert type(error.__cause__) is ModuleNotFoundError
        try:
            import fastattn.jax
        except ModuleNotFoundError as error:
            assert error.name == "jax"
        else:
            raise AssertionError("imported")
    """)
    assert done.returncode == 0, done.stderr


def test_parts_say_how_to_get_what_they_need():
    done = run("""
        import sys
        import fastattn
        from fastattn import onnx, plot
        missing = ["jax", "matplotlib", "ml_dtypes", "onnx", "torch", "transformers"]

        class Finder:
            def find_spec(name, *_):
                if name in missing:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Finder)
        calls = {
            "fastattn.jax needs jax: pip install 'fastattn[jax]'":
                lambda: __import__("fastattn.jax"),
            "fastattn.torch needs torch: pip install 'fastattn[torch]'":
                lambda: __import__("fastattn.torch"),
            "fastattn.transformers needs transformers: pip install 'fastattn[transformers]'":
                lambda: __import__("fastattn.transformers"),
            "fastattn.onnx.Attention needs onnx: pip install 'fastattn[onnx]'":
                lambda: onnx.Attention,
            "fastattn.plot needs matplotlib: pip install 'fastattn[plot]'":
                lambda: plot.heatmap([[1.0]]),
            "dtype 'bfloat16' needs ml_dtypes: pip install ml_dtypes":
                lambda: fastattn.KVCache(1, 1, 8, capacity=4, dtype="bfloat16"),
        }
        for message, call in calls.items():
            try:
                call()
            except ModuleNotFoundError as error:
                assert str(error) == message, error
                assert error.name in missing
            else:
                raise AssertionError(message)
    """)
    assert done.returncode == 0, done.stderr


def test_parts_that_are_broken_say_so():
    done = run("""
        import sys
        import fastattn
        sys.modules["fastattn.caches.files"] = None
        try:
            hasattr(fastattn, "caches")
        except ModuleNotFoundError as error:
            assert error.name == "fastattn.caches.files"
        else:
            raise AssertionError("no error")
    """)
    assert done.returncode == 0, done.stderr


# ---- the view ------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [True, False])
def test_view_of_a_capsule(rng, versioned):
    array = rng.standard_normal((3, 4, 5))[:, ::-2, 1:]
    view = _arrays.from_dlpack("q", Exporter(array, versioned))
    assert address(view) == address(array) and view.strides == array.strides
    assert view.dtype == array.dtype and view.shape == array.shape
    assert view.flags.writeable is versioned  # an old capsule does not say, so it is not written to


def test_old_torch_tensors_are_writable(monkeypatch):
    monkeypatch.setattr(Exporter, "__module__", "torch._tensor")
    assert _arrays.from_dlpack("q", Exporter(np.ones(3), versioned=False)).flags.writeable


def test_view_keeps_the_memory_alive():
    class Array(np.ndarray):
        pass

    array = np.ones(1000).view(Array)
    alive = weakref.ref(array)
    view = _arrays.from_dlpack("q", Exporter(array))
    del array
    gc.collect()
    assert alive() is not None and view.sum() == 1000
    del view
    gc.collect()
    assert alive() is None


def test_read_only_stays_read_only():
    array = np.ones(3)
    array.flags.writeable = False
    assert not _arrays.from_dlpack("q", Exporter(array)).flags.writeable


def test_copies_are_read_but_not_written(rng):
    q, k, v = tensors(rng)
    expected = fastattn.attention(q, k, v)
    found = fastattn.attention(*(Copier(each) for each in (q, k, v)))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match=r"^out: expected a writable array, got a read-only one$"):
        fastattn.attention(q, k, v, out=Copier(np.empty_like(expected)))


def test_without_elements():
    assert _arrays.from_dlpack("q", Exporter(np.empty((3, 0, 2)))).shape == (3, 0, 2)


def test_other_objects_are_none_of_its_business():
    for value in 1.0, [1.0], None, np.float32(1):
        assert _arrays.from_dlpack("q", value) is None


@pytest.mark.parametrize(
    "value, message",
    [
        (OnDevice(np.ones(2), device=(2, 0)),
         "q: expected a strided array of real numbers in the memory of the CPU, got "
         "test_arrays.OnDevice of torch.float32 on cuda:0: it is on DLPack device 2:0 (copy it to "
         "the CPU: tensor.cpu() in torch, jax.device_get(array) in JAX)"),
        (Exporter(np.ones(2, complex)), "q: expected a strided array of real numbers in the memory "
         "of the CPU, got test_arrays.Exporter: its elements are of DLPack type (code, bits, "
         "lanes) = (5, 128, 1)"),
        (Exporter(np.ones(2, "f8").astype(">f8")), "q: expected a strided array of real numbers "
         "in the memory of the CPU, got test_arrays.Exporter: "),
    ], ids=["device", "complex", "bytes"],
)  # fmt: skip
def test_refusal(value, message):
    with pytest.raises(TypeError) as caught:
        fastattn.attention(value, np.ones((2, 2)), np.ones((2, 2)))
    text = str(caught.value)
    assert text == message or (message[-2:] == ": " and text.startswith(message))  # NumPy's words


# ---- torch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    "name", ["float32", "float64", "float16", "bool", "int8", "int32", "int64"]
)
def test_torch_types(torch, name):
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name))
    view = _arrays.from_dlpack("q", tensor)
    assert view.dtype == name and address(view) == tensor.data_ptr() and view.flags.writeable
    np.testing.assert_array_equal(view, tensor.numpy())


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_types_that_numpy_lacks(torch, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = torch.tensor([[0.5, -2.0, 3.0], [1.5, 0.0, -0.125]]).to(getattr(torch, name)).T
    view = _arrays.from_dlpack("q", tensor)
    assert view.dtype == getattr(ml_dtypes, name) and address(view) == tensor.data_ptr()
    np.testing.assert_array_equal(view.astype(np.float32), tensor.float().numpy())


def test_torch_types_that_nothing_takes(torch):
    q = torch.ones(2, 2, dtype=torch.float8_e4m3fnuz)
    with pytest.raises(TypeError, match=r"^q: expected dtype .* got float8_e4m3fnuz$"):
        fastattn.attention(q, q, q)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_types_that_ml_dtypes_brings(torch, name, monkeypatch):
    monkeypatch.setattr(_arrays, "dtypes", dict)
    with pytest.raises(TypeError, match=r"lanes\) = .*\(install ml_dtypes\)$"):
        _arrays.from_dlpack("q", torch.ones(2, 2).to(getattr(torch, name)))


def test_torch_views(torch):
    tensor = torch.randn(2, 3, 4, 5)
    views = [tensor.transpose(1, 3)[:, ::2], tensor.expand(7, 2, 3, 4, 5), tensor[0, 0, 0, 0]]
    views += [tensor[:0], tensor[1:, :, 2:].detach(), torch.nn.Parameter(tensor, False)]
    for each in views:
        view = _arrays.from_dlpack("q", each)
        assert [s // 4 for s in view.strides] == list(each.stride())
        assert each.numel() == 0 or address(view) == each.data_ptr()
        np.testing.assert_array_equal(view, each.numpy())


def test_attention_of_tensors_is_that_of_their_arrays(torch, rng):
    q, k, v = tensors(rng)
    mask, lengths = rng.random((5, 7)) < 0.7, np.array([7, 4])
    options = {"attn_mask": mask, "kv_lengths": lengths, "sinks": rng.standard_normal(4)}
    expected, expected_lse = fastattn.attention(q, k, v, return_lse=True, **options)
    options = {name: torch.from_numpy(value) for name, value in options.items()}
    arrays = [torch.from_numpy(each) for each in (q, k, v)]
    out, lse = fastattn.attention(*arrays, return_lse=True, **options)
    assert type(out) is np.ndarray and type(lse) is np.ndarray
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    merged, _ = fastattn.merge_states(torch.from_numpy(out)[None], torch.from_numpy(lse)[None])
    np.testing.assert_allclose(merged, out, rtol=1e-6)


def test_out_may_be_a_tensor(torch, rng):
    q, k, v = tensors(rng)
    out = torch.zeros(2, 4, 5, 3)
    assert fastattn.attention(q, k, v, out=out) is out
    expected, lse = fastattn.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(out.numpy(), expected)
    merged, _ = fastattn.merge_states([expected], [lse], out=out.zero_())
    assert merged is out
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def test_out_that_overlaps_a_tensor(torch):
    memory = torch.zeros(2, 6, 5, 8)
    with pytest.raises(ValueError, match=r"^out: expected memory of its own, got .* overlaps q"):
        fastattn.attention(memory[:, :4], memory[:, 4:], memory[:, 4:], out=memory[:, 2:].numpy())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda torch: torch.ones(2, 2, requires_grad=True),
         "q: expected a tensor that needs no gradient, got one with requires_grad "
         r"\(pass q.detach\(\), or call it under torch.no_grad\(\); fastattn has no backward"),
        (lambda torch: torch.ones(2, 2, device="meta"), "torch.Tensor of torch.float32 on meta"),
        (lambda torch: torch.eye(2).to_sparse(), "torch.Tensor of torch.float32 on cpu: Cannot"),
        (lambda torch: torch.ones(2, 2, dtype=torch.complex64).conj(), "of torch.complex64 on cpu"),
        (lambda torch: torch.ones(2, 2, dtype=torch.complex64).conj().imag,
         r"its elements are negated lazily; resolve_neg\(\)"),
        (lambda torch: torch._efficientzerotensor(2, 2), "it has no memory"),
    ],
    ids=["grad", "meta", "sparse", "complex", "negative", "zero"],
)  # fmt: skip
def test_tensor_refused(torch, make, message):
    array = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError, match=message) as caught:
        fastattn.attention(make(torch), array, array)
    assert "\n" not in str(caught.value)


def test_dual_tensor_refused(torch):
    """It exports its primal as if that were all of it."""
    q, forward_ad = torch.ones(2, 2), torch.autograd.forward_ad
    with forward_ad.dual_level():
        with pytest.raises(TypeError, match=r"^k: expected a tensor without a tangent, got one"):
            fastattn.attention(q, forward_ad.make_dual(q, q), q)
        np.testing.assert_array_equal(fastattn.attention(q, q, q), np.ones((2, 2)))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_fake_tensor_is_not_read(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2, 2)
    with pytest.raises(TypeError, match="it has no memory"):
        _arrays.from_dlpack("q", fake)


def test_traced_tensor_is_not_read(torch):
    def attend(q):
        return torch.from_numpy(fastattn.attention(q, q, q))

    for transform in torch.vmap, torch.func.functionalize:
        with pytest.raises(TypeError, match=r"^q: expected a strided array"):
            transform(attend)(torch.ones(3, 2, 2))


# ---- JAX -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "bool"])
def test_jax_types(name):
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(6).reshape(2, 3).astype(name)
    view = _arrays.from_dlpack("q", array)
    assert view.dtype == array.dtype and not view.flags.writeable
    assert address(view) == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(view, np.asarray(array))


def test_attention_of_jax_arrays(rng):
    jax = pytest.importorskip("jax")
    q, k, v = tensors(rng)
    out = fastattn.attention(*(jax.numpy.asarray(each) for each in (q, k, v)))
    np.testing.assert_array_equal(out, fastattn.attention(q, k, v))


def test_traced_jax_array_is_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(TypeError, match=r"^q: expected a strided array"):
        jax.jit(lambda q: fastattn.attention(q, q, q))(jax.numpy.ones((2, 2)))


def test_deleted_jax_array_is_refused(rng):
    jax = pytest.importorskip("jax")
    q, k, v = map(jax.numpy.asarray, tensors(rng))
    k.delete()
    message = r"^k: expected a strided array .* of float32: it has been deleted, or donated"
    with pytest.raises(TypeError, match=message):
        fastattn.attention(q, k, v)

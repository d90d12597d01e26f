# SPDX-License-Identifier: MIT
"""fastattn.torch traced, compiled, exported, transformed and differentiated."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch_cases import every_option  # noqa: E402

import fastattn  # noqa: E402
import fastattn.torch as ft  # noqa: E402

# ---- traced and transformed ----------------------------------------------------------------------

OPERATOR = {
    "causal": False, "left": -1, "right": -1, "scale": None, "softcap": 0.0, "layout": "bhsd",
    "precision": "highest", "return_lse": True, "num_threads": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "shapes, change",
    [
        (((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)), {}),
        (((2, 4, 5, 8), (1, 2, 7, 8), (3, 1, 2, 7, 3)), {"return_lse": False}),
        (((4, 5, 8), (3, 2, 7, 8), (2, 7, 3)), {}),
        (((5, 8), (7, 8), (7, 3)), {}),
        (((5, 8), (2, 1, 7, 8), (2, 1, 7, 3)), {}),
        (((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 3)), {"layout": "bshd", "right": 0}),
    ],
    ids=str,
)
def test_operator(randn, shapes, change):
    """Schema, fake kernel and autograd registration, by torch's own check."""
    tensors = [randn(*shape) for shape in shapes]
    operator = torch.ops.fastattn.attention.default
    torch.library.opcheck(operator, (*tensors, *[None] * 9), OPERATOR | change)


def test_operator_on_transposed_tensors(randn):
    tensors = [randn(2, 5, 4, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
    torch.library.opcheck(torch.ops.fastattn.attention.default, (*tensors, *[None] * 9), OPERATOR)


@pytest.mark.parametrize("return_lse", [False, True])
def test_varlen_operator(randn, return_lse):
    q, k, v, cu = randn(9, 4, 16), randn(9, 2, 16), randn(9, 2, 8), torch.tensor([0, 4, 9])
    options = {"causal": True, "left": -1, "right": -1, "scale": None, "softcap": 0.0}
    options |= {"precision": "highest", "return_lse": return_lse, "num_threads": None}
    torch.library.opcheck(
        torch.ops.fastattn.attention_varlen.default, (q, k, v, cu, *[None] * 9), options
    )


class Block(torch.nn.Module):
    """Projections around `attention`: what a graph is made of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x, lengths):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).unbind(2)
        o = ft.attention(q, k, v, layout="bshd", kv_lengths=lengths, window_size=(3, None))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        o = o + ft.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out(o.reshape(x.shape))


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"]
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(randn, backend, mode):
    block, x, lengths = Block(), randn(2, 9, 32), torch.tensor([9, 4])
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=False)
    with mode():
        torch.testing.assert_close(compiled(x, lengths), block(x, lengths))


def test_compile_dynamic(randn):
    block = Block()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, length in (2, 9), (3, 6), (2, 17):
            x, lengths = randn(batch, length, 32), torch.full((batch,), length)
            torch.testing.assert_close(compiled(x, lengths), block(x, lengths))


@pytest.mark.slow
def test_compile_by_inductor(randn):
    """The default backend, which rewrites strides; it needs a C++ compiler."""

    def attend(q):
        return ft.attention(2 * q.transpose(1, 2), q, q) + 1

    q = randn(2, 4, 4, 8)
    compiled = torch.compile(attend, fullgraph=True)
    torch.testing.assert_close(compiled(q), attend(q))


def test_compile_every_option(randn):
    tensors, options = every_option(randn)
    compiled = torch.compile(ft.attention, fullgraph=True, backend="eager")
    for ours, eager in zip(
        compiled(*tensors, **options), ft.attention(*tensors, **options), strict=True
    ):
        assert torch.equal(ours, eager)


def test_export(randn):
    block, x, lengths = Block().eval(), randn(2, 9, 32), torch.tensor([9, 4])
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(block, (x, lengths), dynamic_shapes=({1: length}, {}))
    targets = {str(node.target) for node in program.graph.nodes}
    assert "fastattn.attention.default" in targets
    other = randn(2, 12, 32)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(other, lengths), block(other, lengths))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dynamic", [1, 2], ids=["queries", "both"])
def test_export_of_causal_lengths(randn, dynamic, strict):
    """Alignment to the top left binds the graph neither to squares nor to others."""

    class Causal(torch.nn.Module):
        def forward(self, q, k):
            return causal(q, k)

    q, k = randn(2, 3, 5, 8), randn(2, 3, 7, 8)
    lengths = [{2: torch.export.Dim(name, min=2, max=64)} for name in "nm"[:dynamic]]
    shapes = (*lengths, *[None] * (2 - dynamic))
    program = torch.export.export(Causal(), (q, k), dynamic_shapes=shapes, strict=strict)
    for query in q, k:
        assert torch.equal(program.module()(query, k), causal(query, k))


def test_inference_mode(randn):
    q, k, v = (randn(2, 4, 5, 8) for _ in range(3))
    with torch.inference_mode():
        assert ft.attention(q, k, v).is_inference()
    assert not ft.attention(q, k, v).requires_grad


def test_dispatch_mode_sees_the_operator(randn):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen = (*self.seen, function)
            return function(*args, **(kwargs or {}))

    q = randn(1, 2, 3, 4)
    with Recorder() as recorder:
        out = ft.attention(q, q, q)
    assert torch.ops.fastattn.attention.default in recorder.seen
    assert torch.equal(out, ft.attention(q, q, q))


def test_fake_tensors(randn):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k = torch.empty(2, 4, 5, 8), torch.empty(2, 2, 7, 8)
        out, lse = ft.attention(q, k, k, return_lse=True)
    assert type(ft.attention(q, k, k)) is type(q)  # also outside of the mode: nothing to read
    assert out.shape == (2, 4, 5, 8) and lse.shape == (2, 4, 5) and lse.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_records_the_operator(randn):
    q, other = randn(1, 2, 3, 4), randn(1, 2, 3, 4)
    traced = torch.jit.trace(lambda x: ft.attention(x, x, x), q)
    assert torch.equal(traced(other), ft.attention(other, other, other))


def causal(q, k):
    return ft.scaled_dot_product_attention(q, k, k, is_causal=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "trace", [torch.jit.trace, lambda f, xs: make_fx(f, tracing_mode="symbolic")(*xs)]
)
def test_traces_of_causal_squares_are_right_for_others(randn, trace):
    q, k = randn(2, 3, 5, 8), randn(2, 3, 7, 8)
    assert torch.equal(trace(causal, (k.clone(), k))(q, k), causal(q, k))


@pytest.mark.parametrize("pair", [tuple, list])
def test_symbols_in_a_window(randn, pair):
    class Window(torch.nn.Module):
        def forward(self, q):
            return ft.attention(q, q, q, window_size=pair((q.shape[2] - 4, None)))

    length = torch.export.Dim("length", min=5, max=64)
    q, other = randn(2, 4, 9, 8), randn(2, 4, 12, 8)
    for strict in False, True:
        shapes = ({2: length},)
        program = torch.export.export(Window(), (q,), dynamic_shapes=shapes, strict=strict)
        assert torch.equal(program.module()(other), Window()(other))


def test_symbol_for_a_scale(randn):
    """A graph is bound to its value, as that of torch's own function is, and takes it."""

    def attend(q):
        return ft.attention(q, q, q, scale=q.shape[2] ** -0.5)

    q = randn(2, 4, 9, 8)
    graph = make_fx(attend, tracing_mode="symbolic")(torch.zeros_like(q))
    assert torch.equal(graph(q), attend(q))


# ---- functions of NumPy in a graph ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [fastattn.attention, fastattn.attention_weights])
@pytest.mark.parametrize("name", ["kv_lengths", "kv_starts", "q_offset"])
def test_arrays_break_the_graph(randn, function, name, dtype):
    """Dynamo, which takes arrays for tensors, fails on what checks them: it gets nothing of it."""
    q = randn(2, 4, 5, 8).to(dtype)
    tensors = (q, q, q) if function is fastattn.attention else (q, q)

    def attend(numbers):
        return function(*tensors, **{name: numbers + 1})

    numbers = torch.tensor([2, 4])
    found, expected = torch.compile(attend, backend="eager")(numbers), attend(numbers)
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def test_packed_arrays_break_the_graph(randn):
    q, cuts = randn(5, 2, 4).bfloat16(), torch.tensor([0, 2, 5])
    found = torch.compile(fastattn.attention_varlen, backend="eager")(q, q, q, cuts)
    assert found.tobytes() == fastattn.attention_varlen(q, q, q, cuts).tobytes()


def test_arrays_say_what_stays_in_a_graph(randn):
    attend = torch.compile(lambda q: fastattn.attention(q, q, q), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"functions of fastattn\.torch"):
        attend(randn(1, 2, 3, 4))


# ---- gradients -----------------------------------------------------------------------------------

NO_BACKWARD = r"fastattn.torch: there is no backward yet"
PER_HEAD = ["alibi_slopes", "sinks", "k_scale", "v_scale"]


@pytest.mark.parametrize("which", [*"qkv", "attn_mask", *PER_HEAD])
def test_backward_raises(randn, which):
    """Never a silent None: forward works, as a model in eval mode needs it, backward raises."""
    given = {name: randn(1, 2, 3, 4) for name in "qkv"}
    if which not in given:
        given[which] = randn(3, 3) if which == "attn_mask" else randn(2)
    given[which].requires_grad_()
    out = ft.attention(**given)
    assert out.requires_grad
    with torch.no_grad():
        assert torch.equal(out, ft.attention(**given))
    with pytest.raises(NotImplementedError, match=NO_BACKWARD):
        out.sum().backward()


@pytest.mark.parametrize("which", [*"qkv", *PER_HEAD])
def test_backward_of_varlen_raises(randn, which):
    given = {name: randn(5, 2, 4) for name in "qkv"}
    given.setdefault(which, randn(2)).requires_grad_()
    out = ft.attention_varlen(**given, cu_seqlens_q=torch.tensor([0, 2, 5]))
    with pytest.raises(NotImplementedError, match=NO_BACKWARD):
        out.sum().backward()


@pytest.mark.parametrize("wrt", range(4), ids=["q", "k", "v", "attn_mask"])
def test_functional_gradient_raises(randn, wrt):
    tensors = [randn(1, 2, 3, 4) for _ in range(3)] + [randn(1, 1, 3, 3)]

    def loss(*tensors):
        return torch.vmap(ft.scaled_dot_product_attention)(*tensors).sum()

    for function in loss, lambda *tensors: ft.scaled_dot_product_attention(*tensors).sum():
        with pytest.raises(NotImplementedError, match=NO_BACKWARD):
            torch.func.grad(function, wrt)(*tensors)


def test_functional_gradient_of_the_rest(randn):
    """What does not depend on it, or is told not to, is inference."""
    q, other = randn(1, 2, 3, 4), randn(1, 2, 3, 4)
    still = torch.no_grad()(ft.attention)
    for attend in (
        lambda x: ft.attention(x.detach(), q, q),
        lambda x: still(x, q, q),
        lambda x: ft.attention(other, q, q),
    ):
        gradient = torch.func.grad(lambda x, attend=attend: (x * attend(x)).sum())(other)
        assert torch.equal(gradient, ft.attention(other, q, q))


def test_forward_mode_raises(randn):
    """Never a silent zero either."""
    q, other = randn(1, 2, 3, 4), randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match=NO_BACKWARD):
        torch.func.jvp(lambda x: ft.attention(other, other, x), (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match=NO_BACKWARD):
            ft.attention(dual, q, q)
        assert torch.equal(ft.attention(q, other, other), ft.attention(q, other, other))


def attend(q):
    return ft.attention(q, q, q)


def operator(q):
    """The operator itself, as a graph calls it."""
    return torch.ops.fastattn.attention(q, q, q, *[None] * 9, **OPERATOR)[0]


def dual(function, q):
    with torch.autograd.forward_ad.dual_level():
        return function(torch.autograd.forward_ad.make_dual(q, q))


DIFFERENTIATED = {
    "dual": dual,
    "jvp": lambda function, q: torch.func.jvp(function, (q,), (q,)),
    "linearize": lambda function, q: torch.func.linearize(function, q)[1](q),
    "grad": lambda function, q: torch.func.grad(lambda q: function(q).sum())(q),
}


@pytest.mark.parametrize("function", [operator, attend])
@pytest.mark.parametrize("how", DIFFERENTIATED)
def test_differentiated(randn, how, function):
    """The operator refuses it by itself: torch would have it drop tangents without a word."""
    with pytest.raises(NotImplementedError, match=NO_BACKWARD):
        DIFFERENTIATED[how](function, randn(1, 2, 3, 4))


@pytest.mark.parametrize("how", ["dual", "jvp", "grad"])
def test_differentiated_graph(randn, how):
    compile = torch.compile(backend="eager", fullgraph=True)
    differentiate = DIFFERENTIATED[how]
    with pytest.raises(Exception, match=NO_BACKWARD):
        if how == "dual":
            dual(compile(attend), randn(1, 2, 3, 4))
        else:
            compile(lambda q: differentiate(attend, q))(randn(1, 2, 3, 4))


@pytest.mark.filterwarnings("ignore")
def test_vmap(randn):
    """By torch's loop over the operator."""
    q = randn(3, 2, 4, 5, 8)
    assert torch.equal(torch.vmap(ft.attention)(q, q, q), ft.attention(q, q, q))


def test_parameters_are_read_without_grad(randn, monkeypatch):
    """Where they lie: the dispatcher would take as long as a small attention."""
    parameters = [torch.nn.Parameter(randn(5, 2, 4)) for _ in range(3)]
    tensors, cuts = [each.detach() for each in parameters], torch.tensor([0, 2, 5])
    for name in "attention", "attention_varlen":
        monkeypatch.setattr(ft._attention._ops, name, None)
    with torch.no_grad():
        out, packed = ft.attention(*parameters), ft.attention_varlen(*parameters, cuts)
    assert torch.equal(out, ft.attention(*tensors))
    assert torch.equal(packed, ft.attention_varlen(*tensors, cuts))

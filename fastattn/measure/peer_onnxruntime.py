# SPDX-License-Identifier: MIT
"""Peers: ONNX Runtime's operators: Attention (ai.onnx 23), and of com.microsoft MultiHeadAttention
and, for decoding, GroupQueryAttention.

Each problem becomes a model of one node. Inputs and output are bound once, so a run copies nothing.
"""

import importlib.util

import numpy as np

from fastattn.measure.masking import additive_mask, flag_and_mask
from fastattn.measure.peers import Peer, Prepared

OPSET = 23
IR_VERSION = 11  # of the first release with opset 23, so that older readers of opset 23 take it


class _OneNode(Peer):
    """Runs a model of one node."""

    package = "onnxruntime"

    @classmethod
    def available(cls):
        """Whether onnxruntime is there, and onnx to write the model with."""
        return super().available() and importlib.util.find_spec("onnx") is not None

    def session(self, operator, names, arrays, outputs=("out",), **attributes):
        """Return a session for one node, with the types of `arrays`; outputs have the first's."""
        import onnxruntime
        from onnx import TensorProto, helper

        element = {
            "float32": TensorProto.FLOAT,
            "float16": TensorProto.FLOAT16,
            "bool": TensorProto.BOOL,
            "int32": TensorProto.INT32,
        }
        domain = "" if operator == "Attention" else "com.microsoft"
        node = helper.make_node(operator, names, [*outputs], domain=domain, **attributes)
        given = [name for name in names if name]
        inputs = [
            helper.make_tensor_value_info(name, element[array.dtype.name], array.shape)
            for name, array in zip(given, arrays, strict=True)
        ]
        of_out = element[arrays[0].dtype.name]
        results = [helper.make_tensor_value_info(name, of_out, None) for name in outputs]
        graph = helper.make_graph([node], "attention", inputs, results)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def bind(self, session, arrays, out_shape, array, in_place=()):
        """Return `Prepared` with inputs and output bound to fixed memory.

        in_place: pairs of an input and the output that takes its memory.
        """
        import onnxruntime

        binding = session.io_binding()
        out = onnxruntime.OrtValue.ortvalue_from_shape_and_type(out_shape, arrays[0].dtype.type)
        # The values share the memory of the arrays; not every version keeps both alive.
        values = [
            onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(each)) for each in arrays
        ]
        for meta, value in zip(session.get_inputs(), values, strict=True):
            binding.bind_ortvalue_input(meta.name, value)
        binding.bind_ortvalue_output("out", out)
        names = [meta.name for meta in session.get_inputs()]
        for given, result in in_place:
            binding.bind_ortvalue_output(result, values[names.index(given)])
        run = session.run_with_iobinding

        def call():
            run(binding)
            return out

        return Prepared(call, lambda value: array(value.numpy()), keep=values)


class OnnxAttention(_OneNode):
    """ai.onnx Attention, opset 23: (B, H, S, D), groups of heads, bool and float masks."""

    name = "ort-attention"
    dtypes = ("float32", "float16")
    features = frozenset({"grouped heads", "values of another depth", "window", "softcap"})

    def prepare(self, problem, inputs):
        """Build the model and bind it."""
        arrays = [inputs.q, inputs.k, inputs.v]
        causal, mask = flag_and_mask(problem, inputs)
        if mask is not None:
            # The operator wants the last two axes in full; heads and batch may broadcast.
            mask = np.broadcast_to(mask, (*mask.shape[:-2], problem.Sq, problem.Sk))
            arrays.append(np.ascontiguousarray(mask))
        names = ["q", "k", "v", "mask"][: len(arrays)]
        options = {"is_causal": int(causal)}
        if problem.softcap:
            options["softcap"] = problem.softcap
        session = self.session("Attention", names, arrays, **options)
        shape = (problem.B, problem.Hq, problem.Sq, problem.Dv)
        return self.bind(session, arrays, shape, lambda out: out)


class OnnxMultiHead(_OneNode):
    """com.microsoft MultiHeadAttention: (B, S, H * D), an additive mask."""

    name = "ort-mha"

    features = frozenset({"values of another depth", "window", "two masks"})

    def prepare(self, problem, inputs):
        """Rearrange the inputs, build the model and bind it."""
        p = problem
        arrays = [
            each.swapaxes(1, 2).reshape(p.B, each.shape[2], -1)
            for each in (inputs.q, inputs.k, inputs.v)
        ]
        names = ["q", "k", "v"]
        # Its causal flag is aligned at the top left.
        causal, _ = flag_and_mask(p, inputs)
        added = additive_mask(p, inputs, causal=not causal)
        if added is not None:
            # Input 5 is attention_bias, (B or 1, H or 1, Sq, Sk); 3 and 4 are left out.
            names += ["", "", "bias"]
            arrays.append(np.broadcast_to(added, (*added.shape[:2], p.Sq, p.Sk)))
        session = self.session(
            "MultiHeadAttention", names, arrays, num_heads=p.Hq, unidirectional=int(causal)
        )

        def array(out):
            return out.reshape(p.B, p.Sq, p.Hq, p.Dv).swapaxes(1, 2)

        return self.bind(session, arrays, (p.B, p.Sq, p.Hq * p.Dv), array)


class OnnxGrouped(_OneNode):
    """com.microsoft GroupQueryAttention: one query against a cache, whose last key it brings.

    The cache is shared between input and output, so nothing but that key is copied.
    """

    name = "ort-gqa"

    features = frozenset({"grouped heads"})

    def supports(self, problem):
        """Decoding: with more queries the operator is causal, and takes the cache for a prompt."""
        if problem.Sq != 1:
            return "one query only"
        return f"no depth {problem.D}" if problem.D % 8 else super().supports(problem)

    def prepare(self, problem, inputs):
        """Split off the last key, build the model and bind it."""
        p = problem
        k, v = (np.ascontiguousarray(each) for each in (inputs.k, inputs.v))
        new = [each[:, :, -1].reshape(p.B, 1, -1) for each in (k, v)]
        arrays = [inputs.q.swapaxes(1, 2).reshape(p.B, 1, -1), *new, k, v]
        arrays += [np.full(p.B, p.Sk - 1, np.int32), np.array([p.Sk], np.int32)]
        names = ["q", "new_k", "new_v", "k", "v", "last", "total"]
        session = self.session(
            "GroupQueryAttention", names, arrays, ("out", "all_k", "all_v"),
            num_heads=p.Hq, kv_num_heads=p.Hkv,
        )  # fmt: skip

        def array(out):
            return out.reshape(p.B, 1, p.Hq, p.Dv).swapaxes(1, 2)

        pairs = [("k", "all_k"), ("v", "all_v")]
        return self.bind(session, arrays, (p.B, 1, p.Hq * p.Dv), array, pairs)

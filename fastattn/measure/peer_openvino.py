# SPDX-License-Identifier: MIT
"""Peer: OpenVINO's ScaledDotProductAttention on its CPU plugin."""

import numpy as np

from fastattn.measure.peers import Peer, Prepared, one_mask


class OpenVINO(Peer):
    """A model of one operation (opset 13), static shapes, latency mode, float32 throughout."""

    name = package = "openvino"

    @property
    def version(self):
        """Version without the build number."""
        return super().version.split("-")[0]

    def supports(self, problem):
        """float32 without groups of heads; a causal flag excludes a mask."""
        if problem.dtype != "float32":
            return "float32 only"
        if problem.Hq != problem.Hkv:
            return "no grouped heads"
        if problem.causal and (problem.mask != "none" or problem.padded):
            return "causal excludes a mask"
        if problem.mask == "float" and problem.padded:
            return "one mask only"
        return super().supports(problem)

    def prepare(self, problem, inputs):
        """Compile the model; the tensors share the memory of the inputs."""
        import openvino
        from openvino import opset13

        arrays = [inputs.q, inputs.k, inputs.v]
        mask = one_mask(problem, inputs)
        if mask is not None:
            arrays.append(np.ascontiguousarray(mask))
        parameters = [opset13.parameter(list(each.shape), each.dtype) for each in arrays]
        node = opset13.scaled_dot_product_attention(*parameters, causal=problem.causal)
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        model = openvino.Model([node], parameters, "attention")
        request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
        for index, each in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(each, shared_memory=True))
        infer = request.infer

        def call():
            return infer(share_outputs=True)

        # A tensor with shared memory does not keep the array alive that the memory belongs to.
        return Prepared(call, lambda results: results[0], keep=arrays)

# SPDX-License-Identifier: MIT
"""Peer: OpenVINO's ScaledDotProductAttention on its CPU plugin."""

import numpy as np

from fastattn.measure.masking import flag_and_mask
from fastattn.measure.peers import Peer, Prepared


class OpenVINO(Peer):
    """A model of one operation (opset 13), static shapes, latency mode, float32 throughout."""

    name = package = "openvino"

    @property
    def version(self):
        """Version without the build number."""
        return super().version.split("-")[0]

    features = frozenset({"values of another depth", "window"})

    def prepare(self, problem, inputs):
        """Compile the model; the tensors share the memory of the inputs."""
        import openvino
        from openvino import opset13

        arrays = [inputs.q, inputs.k, inputs.v]
        causal, mask = flag_and_mask(problem, inputs)
        if mask is not None:
            arrays.append(np.ascontiguousarray(mask))
        parameters = [opset13.parameter(list(each.shape), each.dtype) for each in arrays]
        node = opset13.scaled_dot_product_attention(*parameters, causal=causal)
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

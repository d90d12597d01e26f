# SPDX-License-Identifier: MIT
"""`fastattn.onnx.Attention`: the operator for ONNX's reference evaluator."""

from onnx.reference.op_run import OpRun

from fastattn.onnx import attention


class Attention(OpRun):
    """Attention of the default domain, for ``ReferenceEvaluator(model, new_ops=[Attention])``.

    It takes the place of the evaluator's own Attention in every opset that has one (23 to 25).
    """

    op_domain = ""

    def _run(self, *inputs, qk_matmul_output_mode, **attributes):
        outputs = self.onnx_node.output
        wanted = len(outputs) > 3 and outputs[3] != ""
        mode = qk_matmul_output_mode if wanted else None
        results = attention(*inputs, qk_matmul_output_mode=mode, **attributes)
        return results[: 4 if wanted else 3]

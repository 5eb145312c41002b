// TensorFlow's own example of a custom operation: all but the first value become zero.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

using namespace tensorflow;

REGISTER_OP("TensorserveZeroOut")
    .Input("to_zero: int32")
    .Output("zeroed: int32")
    .SetShapeFn([](shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(0));
      return OkStatus();
    });

class ZeroOutOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    auto from = input.flat<int32>();
    auto to = output->flat<int32>();
    for (int i = 0; i < to.size(); i++) to(i) = i == 0 ? from(0) : 0;
  }
};

REGISTER_KERNEL_BUILDER(Name("TensorserveZeroOut").Device(DEVICE_CPU), ZeroOutOp);

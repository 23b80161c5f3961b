// Frees the memory of a tensor and gives it back while the tensor, and views of it that autograd has saved, stay valid.
//
// A tensor without memory keeps its sizes, strides, dtype and device; reading or writing it, or a view of it, throws a
// RuntimeError with the given message. Memory is handed over as a flat tensor of bytes, without a copy. No other thread
// may use the tensor during a call.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace ringdp::zero {

// A tensor like `like`, without memory.
at::Tensor without_memory(const at::Tensor& like, const std::string& message);

// Takes the memory of a tensor's whole storage, and returns it as a 1-D uint8 tensor.
at::Tensor take_memory(const at::Tensor& tensor, const std::string& message);

// Gives `memory` to a tensor without memory, and leaves `memory` empty. RuntimeError if it is too small.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

// parameter.data = value for each; tensors that autograd has saved stay valid.
void set_values(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& values);

}  // namespace ringdp::zero

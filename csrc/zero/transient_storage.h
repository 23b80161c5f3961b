// Tensors whose memory is freed and given back while they, and views of them that autograd has saved, stay valid.
//
// A tensor without memory keeps sizes, strides, dtype and device; reading or writing it, or a view of it, throws a
// RuntimeError with the message given here. Memory moves between tensors as a flat tensor of bytes, never copied.
// Callers make sure that a tensor is not used while its memory is taken.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace ringdp::zero {

// A tensor like `like`, without memory.
at::Tensor without_memory(const at::Tensor& like, const std::string& message);

// Takes the whole memory of a tensor's storage, as bytes; the tensor has none afterwards.
at::Tensor take_memory(const at::Tensor& tensor, const std::string& message);

// Gives `memory`, which is empty afterwards, to a tensor without memory. RuntimeError if it is too small.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

// parameter.data = value for each; autograd's saved tensors stay valid.
void set_values(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& values);

}  // namespace ringdp::zero

// Tensors whose memory comes and goes while they, and views of them that autograd has saved, stay what they are.
//
// A tensor without memory keeps sizes, strides, dtype and device; whoever reads or writes it, or a view of it, gets a
// RuntimeError with the words given here. Memory travels between tensors as a flat tensor of bytes, never copied.
// Callers see to it that nobody uses a tensor while its memory is taken.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace ringdp::zero {

// A tensor with everything of `like` but memory.
at::Tensor without_memory(const at::Tensor& like, const std::string& message);

// The whole memory of a tensor's storage, as bytes; the tensor then is without.
at::Tensor take_memory(const at::Tensor& tensor, const std::string& message);

// `memory`, which is empty afterwards, becomes that of a tensor without. RuntimeError if it is too small.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

// parameter.data = value for each; autograd's saved tensors stay valid.
void set_values(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& values);

}  // namespace ringdp::zero

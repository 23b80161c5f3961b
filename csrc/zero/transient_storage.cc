#include "zero/transient_storage.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "backend/compat.h"

namespace ringdp::zero {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

at::DataPtr nothing(const at::Device& device) { return at::DataPtr(nullptr, device); }

}  // namespace

at::Tensor without_memory(const at::Tensor& like, const std::string& message) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor empty = at::empty({0}, like.options());
  int64_t last = 0;
  for (int64_t dim = 0; dim < like.dim(); ++dim) last += (like.size(dim) - 1) * like.stride(dim);
  c10::StorageImpl& storage = storage_of(empty);
  storage.set_nbytes(like.numel() == 0 ? 0 : static_cast<size_t>(last + 1) * like.itemsize());
  storage.set_resizable(false);
  at::Tensor shaped = empty.as_strided(like.sizes(), like.strides(), 0);
  if (like.numel() > 0) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return shaped;
}

at::Tensor take_memory(const at::Tensor& tensor, const std::string& message) {
  const c10::AutoGradMode no_grad(false);
  c10::StorageImpl& storage = storage_of(tensor);
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  at::Tensor memory = at::empty({0}, tensor.options().dtype(at::kByte));
  storage_of(memory).set_data_ptr_noswap(storage.set_data_ptr(nothing(tensor.device())));
  storage_of(memory).set_nbytes(static_cast<size_t>(bytes));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return memory.as_strided({bytes}, {1}, 0);
}

void give_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  c10::StorageImpl& storage = storage_of(tensor);
  c10::StorageImpl& given = storage_of(memory);
  TORCH_CHECK(given.nbytes() >= storage.nbytes(), "a tensor of ", storage.nbytes(), " bytes does not fit into ",
              given.nbytes(), " bytes of memory");
  at::DataPtr bytes = given.set_data_ptr(nothing(tensor.device()));
  given.set_nbytes(size_t{0});
  backend::allow_access(storage);
  storage.set_data_ptr_noswap(std::move(bytes));
}

void set_values(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& values) {
  TORCH_CHECK(parameters.size() == values.size(), values.size(), " values for ", parameters.size(), " parameters");
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(values[i]);
}

}  // namespace ringdp::zero

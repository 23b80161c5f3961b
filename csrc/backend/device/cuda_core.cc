#include "backend/device/cuda_core.h"

#include "gpu/library.h"

namespace ringdp::backend {
namespace {

class CudaCore final : public DeviceCore {
 public:
  explicit CudaCore(const gpu::Functions& functions) : functions_(functions) {}

  void* allocate(size_t bytes) override {
    void *host = nullptr, *mapped = nullptr;
    check(functions_.host_alloc(bytes, &host, &mapped));
    return host;
  }
  void release(void* memory) noexcept override { functions_.host_free(memory); }
  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    check(functions_.copy(to, from, bytes, stream));
  }
  void call(void* stream, void (*function)(void*), void* argument) override {
    check(functions_.call(stream, function, argument));
  }
  void await(void* stream, const uint32_t* word) override { check(functions_.await(word, 1, stream)); }
  bool is_capturing(void* stream) override {
    int capturing = 0;
    check(functions_.is_capturing(stream, &capturing));
    return capturing != 0;
  }

  const gpu::Functions& functions() const override { return functions_; }

 private:
  void check(int result) const { gpu::require(functions_, result); }
  const gpu::Functions& functions_;
};

DeviceCore* find_cuda() {
  const gpu::Library& library = gpu::library();
  int count = 0;
  if (!library.opened || library.functions.count(&count) != 0 || count == 0) return nullptr;
  return new CudaCore(library.functions);
}

}  // namespace

DeviceCore* cuda_core() {
  static DeviceCore* const instance = find_cuda();
  return instance;
}

}  // namespace ringdp::backend

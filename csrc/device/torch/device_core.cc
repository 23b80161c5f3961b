#include "device/torch/device_core.h"

#include <mutex>
#include <set>
#include <string>

#include "backend/errors.h"
#include "base/log.h"
#include "device/torch/device_collectives.h"

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
  void* new_stream(int device) override {
    void* stream = nullptr;
    check(functions_.stream(device, &stream));
    return stream;
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

struct Served {
  std::mutex mutex;  // guards types
  std::set<c10::DeviceType> types;
};

Served& served() {
  static Served* const instance = new Served;
  return *instance;
}

bool is_announced(c10::DeviceType type) {
  const std::lock_guard lock(served().mutex);
  return served().types.count(type) != 0;
}

}  // namespace

QuietDeviceGuard::QuietDeviceGuard(c10::Device device) noexcept {
  try {
    guard_.reset_device(device);
  } catch (const std::exception& error) {
    log_line(LogLevel::kDebug, "ringdp", std::string("a device cannot be made current: ") + error.what());
  }
}

DeviceCore* cuda_core() {
  static DeviceCore* const instance = find_cuda();
  return instance;
}

bool is_served(c10::DeviceType type) { return core_of(type) != nullptr; }

DeviceCore* core_of(c10::DeviceType type) {
  if (type == c10::kCPU) return nullptr;
  return type == c10::kCUDA || is_announced(type) ? cuda_core() : nullptr;
}

void serve(c10::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  if (type == c10::kCPU || type == c10::kCUDA || is_announced(type)) {
    refuse("serve_device: " + name + " is served by ringdp itself, or already");
  }
  if (cuda_core() == nullptr) {
    refuse("serve_device: " + name + " needs a libringdp_gpu.so that has a device; RINGDP_GPU_LIBRARY names the file");
  }
  const std::lock_guard lock(served().mutex);
  served().types.insert(type);
}

}  // namespace ringdp::backend

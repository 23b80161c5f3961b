#include "backend/device/served.h"

#include <mutex>
#include <set>

#include "backend/device/cuda_core.h"
#include "backend/errors.h"

namespace ringdp::backend {
namespace {

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
